//! How the console looks and what it may do, as its user likes it: `ui.toml`.

use crate::schema::Kind::{self, Text, Texts};
use crate::schema::text_rules::URL;
use crate::schema::{choices, keys};
use std::collections::BTreeMap;

keys! {
    /// The file `ui.toml`, in `$XDG_CONFIG_HOME/rankdeck` or `~/.config/rankdeck`.
    #[serde(default)]
    pub struct Ui {
        /// Colours. `auto` asks the terminal for its background, and obeys `NO_COLOR`.
        theme: ThemeName = ThemeName::Auto,
        /// Characters that the terminal's font has. `auto` goes by the locale.
        glyphs: GlyphsName = GlyphsName::Auto,
        /// The clock of charts and logs.
        clock: ClockName = ClockName::Local,
        /// No key stops, kills, restarts or changes a run; the screen only shows it.
        read_only: bool = false,
        /// Columns of the rank table to show before others (`pid`) or never (`-power`); `:cols` lists them.
        columns: Vec<String> [Texts("columns")] => "as many as fit, by their worth",
        /// Sizes of the overview's panes in percent of the page: `ranks=40`, `charts`, `evals`, `events`;
        /// `:panes` shows those of now.
        panes: Vec<String> [Texts("sizes")] => "as large as what they have to say",
        /// Clicks and the wheel act on the screen. Without, the mouse is the terminal's, which selects text;
        /// `M` changes it.
        mouse: bool = true,
        /// Keys of your own for the screen of a run, by the names that `:` lists: `stop = "ctrl-x"`; several
        /// with blanks between.
        keys: BTreeMap<String, String> [Kind::Names("keys")] => "as the help page (`?`) shows",
        /// Colours of your own over those of the theme, by what they mean: `good = "#2aa198"`,
        /// `accent = "cyan"`, `bad = "160"`; the others are `dim`, `strong`, `warn`, `border`, `fill` and
        /// `series1` to `series6`.
        colors: BTreeMap<String, String> [Kind::Names("colours")] => "those of the theme",
        /// When the console calls you, and how.
        notify: Notify => "",
    }
}

keys! {
    /// When the console calls you, and how: also without a screen, and in one that only shows.
    #[serde(default)]
    pub struct Notify {
        /// What for: `end` of the run, a red `verdict`, the `best` evaluation so far.
        on: Vec<String> [Texts("occasions")] => "`end` and `verdict`",
        /// By the terminal: `auto` rings, and shows a notification where the terminal is known to have them.
        desktop: DesktopName = DesktopName::Auto,
        /// The terminal's title and its progress follow the run.
        title: bool = true,
        /// A program that gets the event as JSON on its input; it may take 10 s.
        command: Vec<String> [Texts("words")] => "none",
        /// An address that the event is posted to as JSON, with `curl`.
        webhook: String [Text(&URL)] => "none",
        /// While no console looks on, rank 0's host posts to `webhook`: the address goes there with the
        /// launch, and into no file.
        away: bool = false,
        /// A program on rank 0's host that gets the event as JSON on its input while no console looks on.
        away_command: Vec<String> [Texts("words")] => "none",
    }
}

choices! {
    /// Notifications of a terminal.
    pub enum DesktopName {
        /// A bell, and a notification where the terminal has them.
        Auto = "auto",
        /// Only a bell.
        Bell = "bell",
        /// Nothing.
        Off = "off",
    }
}

choices! {
    /// Colours.
    pub enum ThemeName {
        /// By the terminal's background.
        Auto = "auto",
        /// For dark backgrounds.
        Dark = "dark",
        /// For light backgrounds.
        Light = "light",
        /// No colours: bold, reverse and faint only.
        Mono = "mono",
        /// For colour-blind eyes.
        Cvd = "cvd",
    }
}

choices! {
    /// Characters.
    pub enum GlyphsName {
        /// By the locale and the terminal.
        Auto = "auto",
        /// Everything, charts in braille.
        Braille = "braille",
        /// Block elements, no braille.
        Block = "block",
        /// ASCII only.
        Ascii = "ascii",
    }
}

choices! {
    /// Clocks.
    pub enum ClockName {
        /// The time zone of this machine.
        Local = "local",
        /// UTC.
        Utc = "utc",
    }
}
