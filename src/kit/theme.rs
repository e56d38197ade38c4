//! Defines themes (a style for each meaning), glyph sets and the terminal's color depth.
//!
//! Invariants:
//! - Only terminal palette colors (the light and the color-blind theme use fixed mid-tone indices); never a
//!   fixed white or black foreground, since users' backgrounds differ.
//! - Every meaning that a color carries is also a letter, a glyph or a word, so `mono` loses
//!   nothing.

use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::border;

/// The meaning of a piece of text; a theme has a style for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Ordinary text.
    Text,
    /// Labels, units, hints.
    Dim,
    /// The important word of a line.
    Strong,
    /// Titles, the program's name, the selected thing.
    Accent,
    /// Success, health.
    Good,
    /// A warning.
    Warn,
    /// A critical problem.
    Bad,
}

/// Names of the colors that users can set, besides those of series.
const COLOR_NAMES: [&str; 8] = ["dim", "strong", "accent", "good", "warn", "bad", "border", "fill"];

/// Styles and glyphs.
#[derive(Debug, Clone, PartialEq)]
pub struct Theme {
    /// `dark`, `light`, `mono` or `cvd`.
    pub name: &'static str,
    /// Which characters may be used.
    pub glyphs: Glyphs,
    /// Labels, units, hints.
    pub dim: Style,
    /// The important word of a line.
    pub strong: Style,
    /// Titles and selection.
    pub accent: Style,
    /// Success, health.
    pub good: Style,
    /// Warnings.
    pub warn: Style,
    /// Critical problems.
    pub bad: Style,
    /// Lines around panes.
    pub border: Style,
    /// Lines around the pane that has the focus.
    pub focus: Style,
    /// The filled part of a meter.
    pub fill: Style,
    /// The chosen entry of a menu, the current tab.
    pub chosen: Style,
    /// Lines of charts, in order.
    pub series: [Style; 6],
}

impl Theme {
    /// For dark backgrounds; the default.
    pub fn dark() -> Theme {
        let mut theme = Theme::palette("dark", Color::Cyan, Color::Green, Color::Yellow, Color::Red);
        // The palette's own blue can hardly be read on black.
        theme.series[4] = Style::new().fg(Color::LightBlue);
        theme
    }

    /// For light backgrounds.
    pub fn light() -> Theme {
        // The palette's own green and yellow can hardly be read on white: darker ones of the 256.
        let (green, amber) = (Color::Indexed(28), Color::Indexed(130));
        let mut theme = Theme::palette("light", Color::Blue, green, amber, Color::Red);
        theme.series[4] = Style::new().fg(Color::Indexed(30));
        theme
    }

    /// No colors: bold, reverse and faint only.
    pub fn mono() -> Theme {
        let plain = Style::new();
        let bold = plain.add_modifier(Modifier::BOLD);
        let faint = plain.add_modifier(Modifier::DIM);
        Theme {
            name: "mono",
            glyphs: Glyphs::Braille,
            dim: faint,
            strong: bold,
            accent: bold,
            good: plain,
            warn: bold,
            bad: bold.add_modifier(Modifier::REVERSED),
            border: faint,
            focus: plain,
            fill: plain,
            chosen: bold.add_modifier(Modifier::REVERSED),
            series: [plain; 6],
        }
    }

    /// For color-blind eyes, on any background: blue, orange and vermilion after Okabe and Ito, as the
    /// nearest of the 256 palette colors that can be read on black and on white.
    pub fn cvd() -> Theme {
        let (blue, green, orange, vermilion) =
            (Color::Indexed(32), Color::Indexed(29), Color::Indexed(136), Color::Indexed(166));
        let mut theme = Theme::palette("cvd", blue, blue, orange, vermilion);
        let (purple, gray) = (Color::Indexed(133), Color::Indexed(244));
        theme.series = [blue, orange, green, purple, vermilion, gray].map(|c| Style::new().fg(c));
        theme
    }

    /// The theme of that name, `None` when there is none.
    pub fn named(name: &str) -> Option<Theme> {
        match name {
            "dark" => Some(Theme::dark()),
            "light" => Some(Theme::light()),
            "mono" => Some(Theme::mono()),
            "cvd" => Some(Theme::cvd()),
            _ => None,
        }
    }

    /// Returns the theme for a terminal, by `NO_COLOR`, the locale and `COLORTERM`.
    pub fn detect(no_color: bool, utf8: bool, truecolor: bool) -> Theme {
        let mut theme = if no_color { Theme::mono() } else { Theme::dark() };
        if !utf8 {
            theme.glyphs = Glyphs::Ascii;
        }
        if truecolor && !no_color {
            // Some palettes (Solarized) make "bright black" the background itself; a mid gray is readable on
            // both.
            let gray = Style::new().fg(Color::Rgb(132, 136, 144));
            theme.dim = gray;
            theme.border = Style::new().fg(Color::Rgb(104, 108, 116));
        }
        theme
    }

    /// Applies the user's colors. Returns wrong lines, too: index, error, hint.
    pub fn recolor(mut self, lines: &[(String, String)]) -> (Theme, Vec<(usize, String, String)>) {
        let mut wrong = Vec::new();
        for (i, (name, color)) in lines.iter().enumerate() {
            let Some(style) = self.named_style(name) else {
                let hint = format!("available: {}, series1 to series6", COLOR_NAMES.join(", "));
                wrong.push((i, format!("unknown color name `{name}`"), hint));
                continue;
            };
            match color.parse::<Color>() {
                Ok(color) => *style = style.fg(color),
                Err(_) => {
                    let hint = "write red, light-blue, #2aa198, or a palette index from 0 to 255";
                    wrong.push((i, format!("invalid color `{color}`"), hint.into()));
                }
            }
        }
        if lines.iter().any(|(name, _)| name == "accent") {
            self.chosen = self.accent.add_modifier(Modifier::REVERSED);
            self.focus = Style { add_modifier: Modifier::empty(), ..self.accent };
        }
        (self, wrong)
    }

    fn named_style(&mut self, name: &str) -> Option<&mut Style> {
        match name {
            "dim" => Some(&mut self.dim),
            "strong" => Some(&mut self.strong),
            "accent" => Some(&mut self.accent),
            "good" => Some(&mut self.good),
            "warn" => Some(&mut self.warn),
            "bad" => Some(&mut self.bad),
            "border" => Some(&mut self.border),
            "fill" => Some(&mut self.fill),
            _ => {
                let number: usize = name.strip_prefix("series")?.parse().ok()?;
                self.series.get_mut(number.checked_sub(1)?)
            }
        }
    }

    /// The same with other glyphs.
    pub fn with_glyphs(mut self, glyphs: Glyphs) -> Theme {
        self.glyphs = glyphs;
        self
    }

    /// Returns the style of a role.
    pub fn style(&self, role: Role) -> Style {
        match role {
            Role::Text => Style::new(),
            Role::Dim => self.dim,
            Role::Strong => self.strong,
            Role::Accent => self.accent,
            Role::Good => self.good,
            Role::Warn => self.warn,
            Role::Bad => self.bad,
        }
    }

    fn palette(name: &'static str, accent: Color, good: Color, warn: Color, bad: Color) -> Theme {
        let fg = |color| Style::new().fg(color);
        let bold = |color| fg(color).add_modifier(Modifier::BOLD);
        Theme {
            name,
            glyphs: Glyphs::Braille,
            dim: fg(Color::DarkGray),
            strong: Style::new().add_modifier(Modifier::BOLD),
            accent: bold(accent),
            good: fg(good),
            warn: fg(warn),
            bad: bold(bad),
            border: fg(Color::DarkGray),
            focus: fg(accent),
            fill: fg(accent),
            chosen: bold(accent).add_modifier(Modifier::REVERSED),
            series: [accent, warn, good, Color::Magenta, Color::Blue, bad].map(fg),
        }
    }
}

/// Colors that the terminal can show, for images and heat maps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ColorDepth {
    /// Red, green and blue.
    True,
    /// A palette of 256.
    #[default]
    Palette,
    /// No colors: shades of characters.
    None,
}

impl ColorDepth {
    /// The closest color that the terminal can show.
    pub fn color(self, rgb: [u8; 3]) -> Color {
        match self {
            ColorDepth::True => Color::Rgb(rgb[0], rgb[1], rgb[2]),
            ColorDepth::Palette | ColorDepth::None => Color::Indexed(indexed(rgb)),
        }
    }
}

/// Returns the nearest color of the 256-color palette: its cube of 6 x 6 x 6, or its grays.
pub fn indexed(rgb: [u8; 3]) -> u8 {
    const STEPS: [i32; 6] = [0, 95, 135, 175, 215, 255];
    let nearest = |channel: u8| (0..6).min_by_key(|i| (STEPS[*i] - i32::from(channel)).abs()).unwrap_or(0);
    let distance = |color: [i32; 3]| {
        color.iter().zip(rgb).map(|(channel, target)| (channel - i32::from(target)).pow(2)).sum::<i32>()
    };
    let cube = rgb.map(nearest);
    let mean = rgb.iter().map(|channel| i32::from(*channel)).sum::<i32>() / 3;
    let gray = ((mean - 3) / 10).clamp(0, 23);
    match distance([8 + 10 * gray; 3]) < distance(cube.map(|i| STEPS[i])) {
        true => (232 + gray) as u8,
        false => (16 + 36 * cube[0] + 6 * cube[1] + cube[2]) as u8,
    }
}

/// Which characters may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Glyphs {
    /// Everything, charts in braille.
    Braille,
    /// Block elements, but no braille (some fonts lack it).
    Block,
    /// ASCII only.
    Ascii,
}

impl Glyphs {
    /// The set of that name, `None` when there is none.
    pub fn named(name: &str) -> Option<Glyphs> {
        match name {
            "braille" => Some(Glyphs::Braille),
            "block" => Some(Glyphs::Block),
            "ascii" => Some(Glyphs::Ascii),
            _ => None,
        }
    }

    /// `unicode` where it may be used, else `ascii`.
    pub fn pick(self, unicode: &'static str, ascii: &'static str) -> &'static str {
        match self {
            Glyphs::Braille | Glyphs::Block => unicode,
            Glyphs::Ascii => ascii,
        }
    }

    /// Columns of rising height, lowest first.
    pub fn ramp(self) -> &'static [&'static str; 8] {
        match self {
            Glyphs::Braille | Glyphs::Block => &["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
            Glyphs::Ascii => &["_", ".", ",", "-", "=", "+", "*", "#"],
        }
    }

    /// A cell filled from the left by `eighths` eighths (1 to 8).
    pub fn eighth(self, eighths: usize) -> &'static str {
        match self {
            Glyphs::Braille | Glyphs::Block => {
                ["▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"][eighths.clamp(1, 8) - 1]
            }
            Glyphs::Ascii => {
                if eighths >= 4 {
                    "#"
                } else {
                    "-"
                }
            }
        }
    }

    /// Corners and lines of boxes.
    pub fn border(self) -> border::Set<'static> {
        match self {
            Glyphs::Braille | Glyphs::Block => border::ROUNDED,
            Glyphs::Ascii => border::Set {
                top_left: "+",
                top_right: "+",
                bottom_left: "+",
                bottom_right: "+",
                vertical_left: "|",
                vertical_right: "|",
                horizontal_top: "-",
                horizontal_bottom: "-",
            },
        }
    }

    /// The sign before a line of this tone.
    pub fn tone(self, role: Role) -> &'static str {
        match role {
            Role::Good => self.pick("✓", "+"),
            Role::Warn => self.pick("▲", "!"),
            Role::Bad => self.pick("✗", "x"),
            Role::Text | Role::Dim | Role::Strong | Role::Accent => self.pick("·", "."),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_colors_override_the_theme_and_mistakes_are_reported() {
        let line = |name: &str, color: &str| (name.to_owned(), color.to_owned());
        let lines = [line("good", "#2aa198"), line("accent", "magenta"), line("series2", "160")];
        let (theme, wrong) = Theme::dark().recolor(&lines);
        assert!(wrong.is_empty(), "{wrong:?}");
        assert_eq!(theme.good.fg, Some(Color::Rgb(0x2a, 0xa1, 0x98)));
        assert_eq!((theme.accent.fg, theme.focus.fg), (Some(Color::Magenta), Some(Color::Magenta)));
        assert_eq!((theme.series[1].fg, theme.bad), (Some(Color::Indexed(160)), Theme::dark().bad));
        for (name, color) in [("goood", "red"), ("good", "reddish"), ("series7", "red")] {
            let (theme, wrong) = Theme::dark().recolor(&[line(name, color)]);
            assert!(matches!(wrong.as_slice(), [(0, _, _)]), "{wrong:?}");
            assert_eq!(theme, Theme::dark());
        }
        assert!(COLOR_NAMES.iter().all(|name| Theme::dark().named_style(name).is_some()));
    }

    /// As xterm shows its palette.
    fn rgb(color: Color) -> [u8; 3] {
        let cube = |n: u8| if n == 0 { 0 } else { 55 + 40 * n };
        match color {
            Color::Red => [205, 0, 0],
            Color::Green => [0, 205, 0],
            Color::Yellow => [205, 205, 0],
            Color::Blue => [0, 0, 238],
            Color::Magenta => [205, 0, 205],
            Color::Cyan => [0, 205, 205],
            Color::DarkGray => [127, 127, 127],
            Color::LightBlue => [92, 92, 255],
            Color::Indexed(n @ 16..=231) => [(n - 16) / 36, (n - 16) / 6 % 6, (n - 16) % 6].map(cube),
            Color::Indexed(n @ 232..) => [8 + 10 * (n - 232); 3],
            other => panic!("{other:?} is not in this palette"),
        }
    }

    /// Relative luminance, as WCAG 2 defines it.
    fn luminance(color: Color) -> f64 {
        let part = |part: u8| {
            let part = f64::from(part) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        };
        let [red, green, blue] = rgb(color).map(part);
        0.2126 * red + 0.7152 * green + 0.0722 * blue
    }

    /// WCAG requires 3 to 1 for large text and lines.
    #[test]
    fn themes_are_readable_and_their_series_are_distinct() {
        let (black, white) = (0.0, 1.0);
        for (theme, backgrounds) in
            [(Theme::dark(), vec![black]), (Theme::light(), vec![white]), (Theme::cvd(), vec![black, white])]
        {
            let roles =
                [theme.dim, theme.accent, theme.good, theme.warn, theme.bad, theme.border, theme.fill];
            for style in roles.iter().chain(&theme.series) {
                let color = style.fg.unwrap();
                for background in &backgrounds {
                    let (high, low) = (luminance(color).max(*background), luminance(color).min(*background));
                    let contrast = (high + 0.05) / (low + 0.05);
                    assert!(contrast >= 3.0, "{} {color:?}: {contrast:.2} to 1", theme.name);
                }
            }
            for (i, style) in theme.series.iter().enumerate() {
                assert!(!theme.series[..i].contains(style), "{}: {style:?} twice", theme.name);
            }
        }
    }
}
