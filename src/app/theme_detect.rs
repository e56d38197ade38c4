//! Detects the theme and the glyphs of this terminal: colors by its background, glyphs by its locale, unless
//! the user sets them.

use rankdeck_kit::ColorDepth;
use rankdeck_tui::{Glyphs, Theme};
use rankdeck_types::ui::{GlyphsName, ThemeName, Ui};

/// Brightness from which a background is light, of 1.
const LIGHT: f64 = 0.5;

/// Returns the theme that is set, or that suits this terminal; `background` queries its background.
pub(crate) fn detect_theme(ui: &Ui, background: impl FnOnce() -> Option<Vec<u8>>) -> Theme {
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
pub(crate) fn color_depth(theme: &Theme) -> ColorDepth {
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
