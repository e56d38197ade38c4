//! Semantic colours and the glyph sets.
//!
//! Owner: the screen. Invariants:
//! - Only terminal palette colours (the light and the colour-blind theme use fixed mid-tone indices); never a
//!   fixed white or black foreground, since users' backgrounds differ.
//! - Every meaning that a colour carries is also a letter, a glyph or a word, so `mono` loses
//!   nothing.

use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::border;

/// What a piece of text means; a theme gives each meaning its look.
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
    /// As it should be.
    Good,
    /// Worth knowing.
    Warn,
    /// Act.
    Bad,
}

/// Names of what a colour can mean, beside lines of charts.
const MEANINGS: [&str; 8] = ["dim", "strong", "accent", "good", "warn", "bad", "border", "fill"];

/// How things look.
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
    /// As it should be.
    pub good: Style,
    /// Worth knowing.
    pub warn: Style,
    /// Act.
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

    /// No colours: bold, reverse and faint only.
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

    /// For colour-blind eyes, on any background: blue, orange and vermillion after Okabe and Ito, as the
    /// nearest of the 256 palette colours that can be read on black and on white.
    pub fn cvd() -> Theme {
        let (blue, green, orange, vermillion) =
            (Color::Indexed(32), Color::Indexed(29), Color::Indexed(136), Color::Indexed(166));
        let mut theme = Theme::palette("cvd", blue, blue, orange, vermillion);
        let (purple, grey) = (Color::Indexed(133), Color::Indexed(244));
        theme.series = [blue, orange, green, purple, vermillion, grey].map(|c| Style::new().fg(c));
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

    /// What suits a terminal: `no_color` as `NO_COLOR` says, `utf8` as the locale says, `truecolor` as
    /// `COLORTERM` says.
    pub fn detect(no_color: bool, utf8: bool, truecolor: bool) -> Theme {
        let mut theme = if no_color { Theme::mono() } else { Theme::dark() };
        if !utf8 {
            theme.glyphs = Glyphs::Ascii;
        }
        if truecolor && !no_color {
            // Some palettes (Solarized) make "bright black" the background itself; a mid grey is readable on
            // both.
            let grey = Style::new().fg(Color::Rgb(132, 136, 144));
            theme.dim = grey;
            theme.border = Style::new().fg(Color::Rgb(104, 108, 116));
        }
        theme
    }

    /// The same with colours of the user's own, and the lines that cannot be followed: which, what is wrong,
    /// what helps.
    pub fn recolour(mut self, lines: &[(String, String)]) -> (Theme, Vec<(usize, String, String)>) {
        let mut wrong = Vec::new();
        for (i, (name, colour)) in lines.iter().enumerate() {
            let Some(style) = self.named_style(name) else {
                let hint = format!("there are {}, and series1 to series6", MEANINGS.join(", "));
                wrong.push((i, format!("`{name}` is no meaning of a colour"), hint));
                continue;
            };
            match colour.parse::<Color>() {
                Ok(colour) => *style = style.fg(colour),
                Err(_) => wrong.push((
                    i,
                    format!("`{colour}` is no colour"),
                    "write red, light-blue, #2aa198, or a number of the palette, 0 to 255".into(),
                )),
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

    /// The look of a meaning.
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

    /// A cell filled from the left by so many eighths (1 to 8).
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
    fn colours_of_the_users_own_lie_over_the_theme_and_wrong_ones_are_told() {
        let line = |name: &str, colour: &str| (name.to_owned(), colour.to_owned());
        let lines = [line("good", "#2aa198"), line("accent", "magenta"), line("series2", "160")];
        let (theme, wrong) = Theme::dark().recolour(&lines);
        assert!(wrong.is_empty(), "{wrong:?}");
        assert_eq!(theme.good.fg, Some(Color::Rgb(0x2a, 0xa1, 0x98)));
        assert_eq!((theme.accent.fg, theme.focus.fg), (Some(Color::Magenta), Some(Color::Magenta)));
        assert_eq!((theme.series[1].fg, theme.bad), (Some(Color::Indexed(160)), Theme::dark().bad));
        for (name, colour, said) in [
            ("goood", "red", "no meaning"),
            ("good", "reddish", "no colour"),
            ("series7", "red", "no meaning"),
        ] {
            let (theme, wrong) = Theme::dark().recolour(&[line(name, colour)]);
            assert!(wrong[0].1.contains(said) && !wrong[0].2.is_empty(), "{wrong:?}");
            assert_eq!(theme, Theme::dark());
        }
        assert!(MEANINGS.iter().all(|name| Theme::dark().named_style(name).is_some()));
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

    /// WCAG asks for 3 to 1 of large text and of lines.
    #[test]
    fn every_theme_can_be_read_on_its_background_and_no_two_series_look_alike() {
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
