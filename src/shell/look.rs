//! How the screen looks on this terminal: colours by its background, characters by its locale, unless the
//! user says otherwise.

use rankdeck_tui::{Glyphs, Theme};
use rankdeck_types::ui::{GlyphsName, ThemeName, Ui};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// How long a terminal may take to tell its colours.
const ANSWER_WITHIN: Duration = Duration::from_millis(250);
/// Most bytes of an answer.
const ANSWER_BYTES: usize = 256;
/// Light from which on a background is a light one, of 1.
const LIGHT: f64 = 0.5;

/// The theme that the user wants, or that suits this terminal; `background` asks it whether it is a light
/// one.
pub fn theme(ui: &Ui, background: impl FnOnce() -> Option<bool>) -> Theme {
    let value = |name: &str| std::env::var(name).unwrap_or_default();
    let set = |name: &str| !value(name).is_empty();
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().map(value).find(|value| !value.is_empty());
    let utf8 = locale.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    });
    let truecolor = matches!(value("COLORTERM").as_str(), "truecolor" | "24bit");
    // The fonts of the Linux console have no braille and no round corners.
    let console = value("TERM") == "linux";
    let no_color = set("NO_COLOR");
    let detected = Theme::detect(no_color, utf8 && !console, truecolor);
    let glyphs = match ui.glyphs {
        GlyphsName::Auto => Glyphs::named(&value("RANKDECK_GLYPHS")).unwrap_or(detected.glyphs),
        GlyphsName::Braille => Glyphs::Braille,
        GlyphsName::Block => Glyphs::Block,
        GlyphsName::Ascii => Glyphs::Ascii,
    };
    let theme = match ui.theme {
        ThemeName::Dark => Theme::dark(),
        ThemeName::Light => Theme::light(),
        ThemeName::Mono => Theme::mono(),
        ThemeName::Cvd => Theme::cvd(),
        ThemeName::Auto => match Theme::named(&value("RANKDECK_THEME")) {
            Some(named) => named,
            None if no_color => detected,
            None => match told(&value("COLORFGBG")).or_else(|| if console { None } else { background() }) {
                Some(true) => Theme::light(),
                Some(false) | None => detected,
            },
        },
    };
    // Whoever wants no colours gets none.
    let plain = theme.name == Theme::mono().name;
    let colours: Vec<(String, String)> =
        ui.colors.iter().filter(|_| !plain).map(|(name, colour)| (name.clone(), colour.clone())).collect();
    theme.recolour(&colours).0.with_glyphs(glyphs)
}

/// Some terminals tell their colours as `FOREGROUND;BACKGROUND`, indices of the palette.
fn told(colours: &str) -> Option<bool> {
    match colours.rsplit(';').next()? {
        "7" | "15" => Some(true),
        background => background.parse::<u8>().is_ok().then_some(false),
    }
}

/// Asks the terminal for its background (OSC 11), and then for what it is, which all terminals answer: after
/// that answer no other comes. The terminal must be in raw mode, and nobody else may read from it.
pub fn ask_background() -> Option<bool> {
    let mut out = io::stdout();
    out.write_all(b"\x1b]11;?\x1b\\\x1b[c").and_then(|()| out.flush()).ok()?;
    let deadline = Instant::now() + ANSWER_WITHIN;
    let mut answer = Vec::new();
    while answer.len() < ANSWER_BYTES && !is_whole(&answer) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || !readable(left) {
            break;
        }
        let mut bytes = [0; 64];
        match io::stdin().lock().read(&mut bytes) {
            Ok(0) | Err(_) => break,
            Ok(read) => answer.extend_from_slice(&bytes[..read]),
        }
    }
    is_light(&answer)
}

/// The answer that always comes is there: `ESC [ ? ... c`.
fn is_whole(answer: &[u8]) -> bool {
    let start = answer.windows(3).position(|three| three == b"\x1b[?");
    start.is_some_and(|start| answer[start..].contains(&b'c'))
}

fn readable(within: Duration) -> bool {
    let mut poll = libc::pollfd { fd: io::stdin().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd; the descriptor is that of stdin.
    unsafe { libc::poll(&mut poll, 1, within.as_millis() as libc::c_int) > 0 }
}

/// Of `rgb:RRRR/GGGG/BBBB`: lighter than dark.
fn is_light(answer: &[u8]) -> Option<bool> {
    let text = String::from_utf8_lossy(answer);
    let colour = text.split_once("rgb:")?.1;
    let end = colour.find(|c: char| !c.is_ascii_hexdigit() && c != '/').unwrap_or(colour.len());
    let part = |part: &str| {
        let most =
            16f64.powi(i32::try_from(part.len()).ok().filter(|digits| (1..=4).contains(digits))?) - 1.0;
        Some(f64::from(u32::from_str_radix(part, 16).ok()?) / most)
    };
    let parts: Vec<f64> = colour[..end].split('/').filter_map(part).collect();
    let [red, green, blue] = parts[..] else { return None };
    Some(0.299 * red + 0.587 * green + 0.114 * blue >= LIGHT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_light_background_is_seen_where_the_terminal_tells_it() {
        for (colours, light) in [
            ("0;15", Some(true)),
            ("0;default;7", Some(true)),
            ("15;0", Some(false)),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(told(colours), light, "{colours}");
        }
        for (answer, light) in [
            ("\x1b]11;rgb:ffff/ffff/ffff\x1b\\\x1b[?62;c", Some(true)),
            ("\x1b]11;rgb:fd/f6/e3\x07\x1b[?1;2c", Some(true)),
            ("\x1b]11;rgb:0000/2b2b/3636\x1b\\", Some(false)),
            ("\x1b[?62;c", None),
            ("\x1b]11;rgb:zz/ff", None),
            ("", None),
        ] {
            assert_eq!(is_light(answer.as_bytes()), light, "{answer:?}");
        }
        assert!(is_whole(b"\x1b]11;rgb:0/0/0\x07\x1b[?62;4c") && !is_whole(b"\x1b]11;rgb:0c/0c/0c\x07"));
    }

    #[test]
    fn what_the_user_says_comes_before_what_the_terminal_says() {
        let ui = Ui { theme: ThemeName::Cvd, glyphs: GlyphsName::Ascii, ..Ui::default() };
        let theme = theme(&ui, || unreachable!("the terminal is not asked"));
        assert_eq!((theme.name, theme.glyphs), ("cvd", Glyphs::Ascii));
    }
}
