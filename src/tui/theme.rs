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
        Theme::palette("dark", Color::Cyan, Color::Green, Color::Yellow, Color::Red, Color::DarkGray)
    }

    /// For light backgrounds.
    pub fn light() -> Theme {
        // The palette's own green and yellow can hardly be read on white: darker ones of the 256.
        let (green, amber) = (Color::Indexed(28), Color::Indexed(130));
        Theme::palette("light", Color::Blue, green, amber, Color::Red, Color::DarkGray)
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

    /// For colour-blind eyes: blue, orange and vermillion after Okabe and Ito, as the nearest of the 256
    /// palette colours.
    pub fn cvd() -> Theme {
        let (sky, green, orange, vermillion) =
            (Color::Indexed(74), Color::Indexed(36), Color::Indexed(172), Color::Indexed(166));
        let mut theme = Theme::palette("cvd", sky, sky, orange, vermillion, Color::DarkGray);
        let purple = Color::Indexed(175);
        theme.series =
            [sky, orange, green, purple, vermillion, Color::Indexed(32)].map(|c| Style::new().fg(c));
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

    fn palette(name: &'static str, accent: Color, good: Color, warn: Color, bad: Color, dim: Color) -> Theme {
        let fg = |color| Style::new().fg(color);
        let bold = |color| fg(color).add_modifier(Modifier::BOLD);
        Theme {
            name,
            glyphs: Glyphs::Braille,
            dim: fg(dim),
            strong: Style::new().add_modifier(Modifier::BOLD),
            accent: bold(accent),
            good: fg(good),
            warn: fg(warn),
            bad: bold(bad),
            border: fg(dim),
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
