//! Reads the terminal: the one source of keys for all screens.
//!
//! Cancel-safe: a reader that is dropped takes nothing away from the program that reads next.
//!
//! Detects the theme and the glyphs of this terminal: colors by its background, glyphs by its locale, unless
//! the user sets them.

use super::terminal::Surface;
use super::terminal_surface::Input;
use crossterm::event::Event as TermEvent;
use crossterm::terminal;
use futures_util::stream;
use rankdeck_kit::ColorDepth;
use rankdeck_kit::decoder::InputDecoder;
use rankdeck_tui::{Glyphs, Theme};
use rankdeck_types::ui::{GlyphsName, ThemeName, Ui};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Most bytes of one read.
const READ_BYTES: usize = 4096;
/// Longest time for a terminal to report its colors.
const REPLY_WITHIN: Duration = Duration::from_millis(250);

/// Reads events from the terminal; `decoder` has what was read before.
///
/// # Errors
/// Stdin is not a terminal.
pub(crate) fn read(decoder: InputDecoder) -> io::Result<Input> {
    let reader = TerminalReader { stdin: stdin()?, decoder, resized: signal(SignalKind::window_change())? };
    let events = stream::unfold(reader, |mut reader| async move { Some((reader.next().await, reader)) });
    Ok(Box::pin(events))
}

/// Opens stdin for [`next_bytes`].
///
/// # Errors
/// It is a file, or closed.
pub(crate) fn stdin() -> io::Result<AsyncFd<OwnedFd>> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    // SAFETY: the registration owns the descriptor, so it stays open until deregistration.
    let input = unsafe { AsyncFd::register_with_interest(input, Interest::READABLE) };
    input.map_err(|error| error.into_parts().1)
}

struct TerminalReader {
    stdin: AsyncFd<OwnedFd>,
    decoder: InputDecoder,
    resized: Signal,
}

impl TerminalReader {
    async fn next(&mut self) -> io::Result<TermEvent> {
        loop {
            if let Some(event) = self.decoder.next_event() {
                return Ok(event);
            }
            let patience = self.decoder.patience();
            tokio::select! {
                Some(()) = self.resized.recv() => {
                    let (columns, rows) = terminal::size()?;
                    return Ok(TermEvent::Resize(columns, rows));
                }
                bytes = next_bytes(&self.stdin) => self.decoder.push(&bytes?),
                () = tokio::time::sleep(patience.unwrap_or_default()), if patience.is_some() => {
                    self.decoder.settle();
                }
            }
        }
    }
}

/// Waits for bytes and reads them. Cancel-safe.
///
/// # Errors
/// The end of the input, or a system error.
pub(crate) async fn next_bytes(stdin: &AsyncFd<OwnedFd>) -> io::Result<Vec<u8>> {
    loop {
        let mut guard = stdin.readable().await?;
        // The terminal is shared with other programs, and so stays blocking.
        if !is_readable(stdin.get_ref(), Some(Duration::ZERO)) {
            guard.clear_ready();
            continue;
        }
        return read_bytes(stdin.get_ref());
    }
}

/// Reads what is there.
fn read_bytes(fd: &impl AsFd) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; READ_BYTES];
    // SAFETY: the buffer has room for this many bytes, and the descriptor is open.
    let read = unsafe { libc::read(fd.as_fd().as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
    match usize::try_from(read) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(read) => {
            bytes.truncate(read);
            Ok(bytes)
        }
        Err(_) => match io::Error::last_os_error() {
            error if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {
                Ok(Vec::new())
            }
            error => Err(error),
        },
    }
}

/// Whether there is something to read, or the end; `None` waits for it.
fn is_readable(fd: &impl AsFd, within: Option<Duration>) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let within = within.map_or(-1, |within| within.as_millis() as libc::c_int);
    // SAFETY: one valid pollfd; the descriptor is open.
    unsafe { libc::poll(&mut poll, 1, within) > 0 }
}

/// Waits for the next event of stdin, for commands without an event loop.
///
/// # Errors
/// The terminal is gone.
pub(crate) fn wait(decoder: &mut InputDecoder) -> io::Result<TermEvent> {
    let stdin = io::stdin();
    loop {
        if let Some(event) = decoder.next_event() {
            return Ok(event);
        }
        let patience = decoder.patience();
        match is_readable(&stdin, patience) {
            true => decoder.push(&read_bytes(&stdin)?),
            false if patience.is_some() => decoder.settle(),
            // A signal.
            false => {}
        }
    }
}

/// Queries the background (OSC 11), and then the terminal type, to which all terminals reply: no other
/// reply follows. Returns the reply about the background; keys, and what arrives later, are left to
/// `decoder`. The terminal must be in raw mode without another reader.
pub(crate) fn query_background(terminal: &mut dyn Surface, decoder: &mut InputDecoder) -> Option<Vec<u8>> {
    terminal.send(b"\x1b]11;?\x1b\\\x1b[c").ok()?;
    let (stdin, deadline) = (io::stdin(), Instant::now() + REPLY_WITHIN);
    let mut background = None;
    loop {
        while let Some(reply) = decoder.next_reply() {
            match reply.as_slice() {
                [0x1b, b']', b'1', b'1', b';', ..] => background = Some(reply),
                [0x1b, b'[', b'?', .., b'c'] => return background,
                _ => {}
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || !is_readable(&stdin, Some(left)) {
            return background;
        }
        decoder.push(&read_bytes(&stdin).ok()?);
    }
}

/// Brightness from which a background is light, of 1.
const LIGHT: f64 = 0.5;

/// Returns the theme that is set, or that suits this terminal; `background` queries its background.
pub(super) fn detect_theme(ui: &Ui, background: impl FnOnce() -> Option<Vec<u8>>) -> Theme {
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
            None => match is_light_by_variable(&value("COLORFGBG"))
                .or_else(|| if console { None } else { is_light(&background()?) })
            {
                Some(true) => Theme::light(),
                Some(false) | None => detected,
            },
        },
    };
    // `NO_COLOR` also disables the user's own colors.
    let plain = theme.name == Theme::mono().name;
    let colors: Vec<(String, String)> =
        ui.colors.iter().filter(|_| !plain).map(|(name, color)| (name.clone(), color.clone())).collect();
    theme.recolor(&colors).0.with_glyphs(glyphs)
}

/// Returns the color depth of this terminal.
pub(super) fn color_depth(theme: &Theme) -> ColorDepth {
    let set = |name: &str| std::env::var(name).unwrap_or_default();
    match set("COLORTERM").as_str() {
        _ if theme.name == "mono" || !set("NO_COLOR").is_empty() => ColorDepth::None,
        "truecolor" | "24bit" => ColorDepth::True,
        _ => ColorDepth::Palette,
    }
}

/// Reads `COLORFGBG`, which some terminals set: `FOREGROUND;BACKGROUND`, indices of the palette.
fn is_light_by_variable(colors: &str) -> Option<bool> {
    match colors.rsplit(';').next()? {
        "7" | "15" => Some(true),
        background => background.parse::<u8>().is_ok().then_some(false),
    }
}

/// Parses `rgb:RRRR/GGGG/BBBB` and returns whether it is light.
fn is_light(reply: &[u8]) -> Option<bool> {
    let text = String::from_utf8_lossy(reply);
    let color = text.split_once("rgb:")?.1;
    let end = color.find(|c: char| !c.is_ascii_hexdigit() && c != '/').unwrap_or(color.len());
    let part = |part: &str| {
        let most =
            16f64.powi(i32::try_from(part.len()).ok().filter(|digits| (1..=4).contains(digits))?) - 1.0;
        Some(f64::from(u32::from_str_radix(part, 16).ok()?) / most)
    };
    let parts: Vec<f64> = color[..end].split('/').filter_map(part).collect();
    let [red, green, blue] = parts[..] else { return None };
    Some(0.299 * red + 0.587 * green + 0.114 * blue >= LIGHT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn light_background_is_detected() {
        for (colors, light) in [
            ("0;15", Some(true)),
            ("0;default;7", Some(true)),
            ("15;0", Some(false)),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(is_light_by_variable(colors), light, "{colors}");
        }
        for (reply, light) in [
            ("\x1b]11;rgb:ffff/ffff/ffff\x1b\\\x1b[?62;c", Some(true)),
            ("\x1b]11;rgb:fd/f6/e3\x07\x1b[?1;2c", Some(true)),
            ("\x1b]11;rgb:0000/2b2b/3636\x1b\\", Some(false)),
            ("\x1b[?62;c", None),
            ("\x1b]11;rgb:zz/ff", None),
            ("", None),
        ] {
            assert_eq!(is_light(reply.as_bytes()), light, "{reply:?}");
        }
    }

    #[test]
    fn user_settings_override_terminal_detection() {
        let ui = Ui { theme: ThemeName::Cvd, glyphs: GlyphsName::Ascii, ..Ui::default() };
        let theme = detect_theme(&ui, || unreachable!("the terminal is not queried"));
        assert_eq!((theme.name, theme.glyphs), ("cvd", Glyphs::Ascii));
    }
}
