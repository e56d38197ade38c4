//! The user's settings of the console: `ui.toml`.

use crate::schema::URL;
use crate::schema::ValueKind::{self, Text, Texts};
use crate::schema::{choices, keys};
use std::collections::BTreeMap;

keys! {
    /// The file `ui.toml`, in `$XDG_CONFIG_HOME/rankdeck` or `~/.config/rankdeck`.
    #[serde(default)]
    pub struct Ui {
        /// Color theme; `auto` follows the terminal's background and `NO_COLOR`.
        theme: ThemeName = ThemeName::Auto,
        /// Glyph set; `auto` follows the locale.
        glyphs: GlyphsName = GlyphsName::Auto,
        /// Time zone of charts and logs.
        clock: ClockName = ClockName::Local,
        /// Disable all key bindings that change a run.
        read_only: bool = false,
        /// Columns of the rank table to show first (`pid`) or to hide (`-power`); `:cols` lists them.
        columns: Vec<String> [Texts("columns")] => "as many as fit, most important first",
        /// Sizes of the overview's panes in percent: `ranks=40`, `charts`, `evals`, `events`; `:panes`
        /// shows the current ones.
        panes: Vec<String> [Texts("sizes")] => "sized to their content",
        /// Capture the mouse; if off, the terminal selects text. `M` toggles it.
        mouse: bool = true,
        /// Key bindings of the run screen by command name, as listed by `:`: `stop = "ctrl-x"`; separate several
        /// keyboard keys with spaces.
        keys: BTreeMap<String, String> [ValueKind::Names("key bindings")] => "default bindings (`?` lists them)",
        /// Colors that override the theme, by role: `good = "#2aa198"`, `accent = "cyan"`, `bad = "160"`;
        /// the others are `dim`, `strong`, `warn`, `border`, `fill` and `series1` to `series6`.
        colors: BTreeMap<String, String> [ValueKind::Names("colors")] => "the theme's",
        /// Notifications.
        notify: Notify => "",
    }
}

keys! {
    /// When and how the console notifies you, in every mode.
    #[serde(default)]
    pub struct Notify {
        /// Events to notify about: `end`, critical `verdict`, new `best` evaluation.
        on: Vec<String> [Texts("events")] => "`end` and `verdict`",
        /// Terminal notifications: `auto` rings the bell and shows a notification if the terminal supports
        /// them.
        desktop: DesktopName = DesktopName::Auto,
        /// Show the run's state in the terminal's title and progress indicator.
        title: bool = true,
        /// Program that receives each event as JSON on stdin; it may run for 10 s.
        command: Vec<String> [Texts("words")] => "none",
        /// URL to post each event to as JSON, with `curl`.
        webhook: String [Text(&URL)] => "none",
        /// While no console is attached, rank 0's host posts to `webhook`. The URL is sent with the launch
        /// and stored in no file.
        away: bool = false,
        /// Program on rank 0's host that receives each event as JSON on stdin while no console is attached.
        away_command: Vec<String> [Texts("words")] => "none",
    }
}

choices! {
    /// Terminal notifications.
    pub enum DesktopName {
        /// Bell, and a notification if the terminal supports them.
        Auto = "auto",
        /// Bell only.
        Bell = "bell",
        /// None.
        Off = "off",
    }
}

choices! {
    /// Color theme.
    pub enum ThemeName {
        /// By the terminal's background.
        Auto = "auto",
        /// For dark backgrounds.
        Dark = "dark",
        /// For light backgrounds.
        Light = "light",
        /// No colors: bold, reverse and faint only.
        Mono = "mono",
        /// For color vision deficiency.
        Cvd = "cvd",
    }
}

choices! {
    /// Glyph set.
    pub enum GlyphsName {
        /// By the locale and the terminal.
        Auto = "auto",
        /// All glyphs, charts in braille.
        Braille = "braille",
        /// Block elements, no braille.
        Block = "block",
        /// ASCII only.
        Ascii = "ascii",
    }
}

choices! {
    /// Time zone.
    pub enum ClockName {
        /// This machine's time zone.
        Local = "local",
        /// UTC.
        Utc = "utc",
    }
}
