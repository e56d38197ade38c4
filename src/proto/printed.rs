//! Values in the output of programs: pairs, dictionaries and tables. Pure.
//!
//! ```text
//! pairs         loss=0.5, acc: 0.9    step 3 | loss 0.5    global_step=100, episodic_return=[3.]
//! dictionaries  {'loss': '5.993', 'epoch': 0.1}            {"loss": {"policy": 0.5}}
//! tables        | rollout/ |  |, | ep_rew_mean | 21.3 |    a row of names, then rows of values
//! ```
//!
//! Invariants:
//! - PRINTED-1: nothing is read from prose. A line counts with two numbers that have names, with one whose name
//!   has a meaning, or in the form of a known logger.
//! - PRINTED-2: any text is read in time that grows with its length; a line or table gives at most [`VALUES`]
//!   values, an object of a file [`OBJECT_VALUES`].

use rankdeck_types::meaning::Meanings;
use rankdeck_types::words;
use std::borrow::Cow;

/// Most values of one line or table.
pub const VALUES: usize = 128;
/// Longest name, bytes.
const NAME: usize = 64;
/// Longest line in which a name and its number may stand without a sign between them, bytes.
const LOOSE_LINE: usize = 300;
/// Most spaces between a name, its sign and its number.
const GAP: usize = 24;
/// Words before a name that may be a part of it.
const WORDS_BEFORE: usize = 2;
/// How deep dictionaries are read, and objects of files, which RLlib nests deeper.
const DEPTH: usize = 3;
const OBJECT_DEPTH: usize = 6;
/// Most values of an object of a file.
pub const OBJECT_VALUES: usize = 512;
/// Most cells of a row.
const CELLS: usize = 32;
/// Names that are levels of a log.
const LEVELS: [&str; 7] = ["INFO", "WARNING", "WARN", "ERROR", "DEBUG", "CRITICAL", "TRACE"];
/// First words of lines about evaluations.
const EVALUATIONS: [&str; 7] = ["eval", "evaluation", "evaluator", "test", "val", "valid", "validation"];
/// What values are wrapped in.
const WRAPPERS: [&str; 12] = [
    "np.float64(",
    "np.float32(",
    "np.int64(",
    "np.int32(",
    "numpy.float64(",
    "numpy.float32(",
    "array([",
    "array(",
    "tensor([",
    "tensor(",
    "[",
    "(",
];

/// The values of a line or a table.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PrintedValues {
    /// Name and value, in the order of the text.
    pub values: Vec<(String, f64)>,
    /// Name of a counter and its end: `epoch: 3/500`.
    pub totals: Vec<(String, f64)>,
}

impl PrintedValues {
    fn add(&mut self, name: impl Into<String>, value: f64) {
        if self.values.len() < VALUES {
            self.values.push((name.into(), value));
        }
    }

    fn add_pair(&mut self, pair: NamedNumber) {
        if let Some(total) = pair.total.filter(|_| self.totals.len() < VALUES) {
            self.totals.push((pair.name.clone(), total));
        }
        self.add(pair.name, pair.value);
    }
}

/// Reads the lines of a program in their order.
#[derive(Debug, Default)]
pub struct MetricLineParser {
    table: PrintedTable,
}

impl MetricLineParser {
    /// Reads a line; `each` gets the values of a table that it ends, then its own.
    pub fn line(&mut self, line: &str, meanings: &Meanings, mut each: impl FnMut(PrintedValues)) {
        let line = plain(line);
        let text = line.trim();
        match kind(text) {
            LineKind::Row => {
                if !self.table.row(text, &mut each) {
                    self.end(&mut each);
                    pairs(text, meanings).into_iter().for_each(each);
                }
            }
            LineKind::Border => self.table.border(text, &mut each),
            LineKind::Text => {
                self.end(&mut each);
                values(text, meanings).into_iter().for_each(each);
            }
        }
    }

    /// Ends a table that no line has ended.
    pub fn end(&mut self, mut each: impl FnMut(PrintedValues)) {
        self.table.end(&mut each);
    }

    /// Whether a table has begun.
    pub fn is_in_table(&self) -> bool {
        !self.table.reading.values.is_empty()
    }
}

/// Returns the pairs in a text that consists of them, such as that behind a progress bar.
pub fn listed(text: &str, meanings: &Meanings) -> PrintedValues {
    let mut reading = PrintedValues::default();
    signed(&plain(text), meanings).into_iter().for_each(|pair| reading.add_pair(pair));
    reading
}

/// Returns the numbers of a line that is one object, such as JSON; of nested ones with `/` between the names.
pub fn object(text: &str) -> Vec<(String, f64)> {
    let mut reading = PrintedValues::default();
    if text.starts_with('{') {
        let limits = (OBJECT_DEPTH, OBJECT_VALUES);
        Dictionary { text, at: 1, limits, reading: &mut reading }.read("", 0);
    }
    reading.values
}

/// Returns a line without escape sequences.
pub fn plain(line: &str) -> Cow<'_, str> {
    if line.contains('\x1b') { Cow::Owned(words::clean_output(line)) } else { Cow::Borrowed(line) }
}

enum LineKind {
    Row,
    Border,
    Text,
}

const BARS: [char; 4] = ['|', '│', '┃', '║'];

fn kind(text: &str) -> LineKind {
    let Some(first) = text.chars().next() else { return LineKind::Text };
    let is_line = |c: char| matches!(c, '-' | '=' | '+' | ' ' | '\u{2500}'..='\u{257f}') || BARS.contains(&c);
    let lines = |text: &str| text.len() >= 3 && text.chars().all(|c| is_line(c) || c == ':');
    if BARS.contains(&first) && text.chars().count() > 2 && text.ends_with(BARS) {
        return if lines(text) && !text.contains(' ') { LineKind::Border } else { LineKind::Row };
    }
    if is_line(first) && lines(text) { LineKind::Border } else { LineKind::Text }
}

/// A table whose rows come one by one.
#[derive(Debug, Default)]
struct PrintedTable {
    /// Title of the rows below it: `rollout/`.
    section: String,
    /// Names over the columns.
    header: Vec<String>,
    reading: PrintedValues,
}

impl PrintedTable {
    /// Reads a row; false if it has none of the known forms.
    fn row(&mut self, text: &str, each: &mut impl FnMut(PrintedValues)) -> bool {
        let inner = text.trim_start_matches(BARS).trim_end_matches(BARS);
        let raw: Vec<&str> = match inner.contains(BARS) {
            true => inner.split(BARS).take(CELLS + 1).collect(),
            // Ray: no bars between the columns.
            false => columns_by_gaps(inner),
        };
        let cells: Vec<&str> = raw.iter().map(|cell| cell.trim()).collect();
        if cells.len() < 2 || cells.len() > CELLS {
            return false;
        }
        if cells.iter().all(|cell| cell.is_empty()) {
            return true;
        }
        // `Name` stands over the names, and `Value` over their values.
        let is_turned = self.header.first().is_some_and(|first| first == "Name");
        if let ([name, value], false) = (&cells[..], is_turned) {
            if value.is_empty() && name.ends_with('/') {
                (self.section, self.header) = ((*name).to_owned(), Vec::new());
                return true;
            }
            if let Some(value) = number(value).filter(|_| is_title(name)) {
                // Rows of a section are indented.
                let is_inside = raw[0].len() - raw[0].trim_start().len() > 1;
                let section = if is_inside { self.section.as_str() } else { "" };
                let name = format!("{section}{name}");
                self.header.clear();
                self.next_of(&name, each);
                self.reading.add(name, value);
                return true;
            }
        }
        if cells.iter().all(|cell| is_title(cell) || cell.is_empty()) {
            // In Ray's tables, `ts` are steps; elsewhere it may be a time.
            let is_ray = cells.first() == Some(&"Trial name");
            let title = |cell: &str| {
                if is_ray && cell == "ts" { "timesteps_total".to_owned() } else { cell.to_owned() }
            };
            self.header = cells.iter().map(|cell| title(cell)).collect();
            return true;
        }
        let named: Vec<(String, f64)> = match self.header.len() == cells.len() {
            true => {
                let pairs = self.header.iter().zip(&cells).filter(|(name, _)| !name.is_empty());
                pairs.filter_map(|(name, cell)| Some((name.clone(), number(cell)?))).collect()
            }
            false => Vec::new(),
        };
        for (name, value) in &named {
            self.next_of(name, each);
            self.reading.add(name.clone(), *value);
        }
        !named.is_empty()
    }

    /// A name that is there already belongs to the next row.
    fn next_of(&mut self, name: &str, each: &mut impl FnMut(PrintedValues)) {
        if self.reading.values.iter().any(|(known, _)| known == name) {
            self.give(each);
        }
    }

    /// A line between rows, or behind the last one.
    fn border(&mut self, text: &str, each: &mut impl FnMut(PrintedValues)) {
        let closes = text.starts_with(['└', '╰', '┗', '╚']) || text.chars().all(|c| c == '-');
        if closes {
            self.end(each);
            self.section.clear();
        }
    }

    fn end(&mut self, each: &mut impl FnMut(PrintedValues)) {
        self.header.clear();
        self.give(each);
    }

    fn give(&mut self, each: &mut impl FnMut(PrintedValues)) {
        let mut reading = std::mem::take(&mut self.reading);
        // DI-engine's evaluator: its other values have the names of training.
        if reading.values.iter().any(|(name, _)| name.starts_with("evaluate_")) {
            reading.values.iter_mut().for_each(|(name, _)| name.insert_str(0, "eval/"));
        }
        if !reading.values.is_empty() {
            each(reading);
        }
    }
}

/// The columns of a row without bars: two spaces or more are between them.
fn columns_by_gaps(inner: &str) -> Vec<&str> {
    // The indentation belongs to the first column.
    let begin = inner.len() - inner.trim_start().len();
    let first_end = inner[begin..].find("  ").map_or(inner.len(), |at| begin + at);
    let (first, rest) = inner.split_at(first_end);
    let others = rest.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
    std::iter::once(first).chain(others).take(CELLS + 1).collect()
}

/// A cell that may be the name of a value.
fn is_title(cell: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || " _-./()%@#±".contains(c);
    let begins = cell.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    begins && cell.len() <= NAME && cell.chars().all(is_part) && cell.split(' ').count() <= 5
}

/// The values of a line outside a table.
fn values(text: &str, meanings: &Meanings) -> Option<PrintedValues> {
    if !text.bytes().any(|byte| byte.is_ascii_digit()) && !text.contains("nan") && !text.contains("inf") {
        return None;
    }
    if text.starts_with("fps step:") {
        return rl_games(text);
    }
    composer(text)
        .or_else(|| evaluation_over(text, meanings))
        .or_else(|| dictionary(text, meanings))
        .or_else(|| pairs(text, meanings))
}

/// `Evaluation over 10 episodes: 12.3` of TD3's authors and of code that follows it (BCQ, CORL).
fn evaluation_over(text: &str, meanings: &Meanings) -> Option<PrintedValues> {
    let (episodes, rest) = text.strip_prefix("Evaluation over ")?.split_once(" episodes: ")?;
    let (value, used) = leading(rest).filter(|_| episodes.bytes().all(|byte| byte.is_ascii_digit()))?;
    let mut reading = PrintedValues::default();
    reading.add("eval/episode_return", value);
    signed(&rest[used..], meanings)
        .into_iter()
        .for_each(|pair| reading.add(format!("eval/{}", pair.name), pair.value));
    Some(reading)
}

/// `Train metrics/train/Accuracy: 0.5000` of Composer's console logger: one value per line, below a line with the batch.
fn composer(text: &str) -> Option<PrintedValues> {
    let rest = text.strip_prefix("Train ").or_else(|| text.strip_prefix("Eval "))?;
    let (name, value) = rest.split_once(": ")?;
    let is_name = name.contains('/') && name.len() <= NAME * 2 && name.chars().all(is_name_part);
    let value = number(value.trim()).filter(|_| is_name)?;
    Some(PrintedValues { values: vec![(name.to_owned(), value)], totals: Vec::new() })
}

/// `fps step: 1 fps step and policy inference: 2 fps total: 3 epoch: 1/500 frames: 4096`
fn rl_games(text: &str) -> Option<PrintedValues> {
    let mut reading = PrintedValues::default();
    for (label, name) in [("fps total:", "fps"), ("epoch:", "epoch"), ("frames:", "frames")] {
        let Some((_, rest)) = text.split_once(label) else { continue };
        let rest = rest.trim_start();
        let Some((value, used)) = leading(rest) else { continue };
        let total = total(&rest[used..]);
        reading.add_pair(NamedNumber { name: name.to_owned(), value, total });
    }
    (!reading.values.is_empty()).then_some(reading)
}

/// The numbers of a dictionary or a JSON object, with those of the text before it.
fn dictionary(text: &str, meanings: &Meanings) -> Option<PrintedValues> {
    let open = text.match_indices('{').map(|(at, _)| at).find(|at| {
        let inside = text[at + 1..].trim_start();
        inside.starts_with(['"', '\''])
    })?;
    let mut reading = PrintedValues::default();
    if open > 0 {
        loose(&text[..open], meanings).into_iter().for_each(|pair| reading.add_pair(pair));
    }
    Dictionary { text, at: open + 1, limits: (DEPTH, VALUES), reading: &mut reading }.read("", 0);
    is_form(&reading, meanings).then_some(reading)
}

/// PRINTED-1.
fn is_form(reading: &PrintedValues, meanings: &Meanings) -> bool {
    reading.values.len() >= 2 || reading.values.iter().any(|(name, _)| meanings.of(name).is_some())
}

struct Dictionary<'a, 'b> {
    text: &'a str,
    at: usize,
    /// Most levels below the first one, and most values.
    limits: (usize, usize),
    reading: &'b mut PrintedValues,
}

impl<'a> Dictionary<'a, '_> {
    /// Reads entries up to the closing brace, or to the first text that is not an entry.
    fn read(&mut self, prefix: &str, depth: usize) -> Option<()> {
        loop {
            self.skip(|c| c.is_whitespace() || c == ',');
            if self.take('}') {
                return Some(());
            }
            let name = self.quoted()?;
            self.skip(char::is_whitespace);
            if !self.take(':') {
                return None;
            }
            self.skip(char::is_whitespace);
            let is_name = !name.is_empty() && name.len() <= NAME && !name.contains(char::is_control);
            let name = format!("{prefix}{name}");
            match self.rest().chars().next()? {
                '{' if depth < self.limits.0 => {
                    self.at += 1;
                    self.read(&format!("{name}/"), depth + 1)?;
                }
                '"' | '\'' => {
                    let value = number(self.quoted()?);
                    self.add(&name, value.filter(|_| is_name));
                }
                _ => {
                    let rest = self.rest();
                    let end = end_of_value(rest)?;
                    let value = leading(&rest[..end]).filter(|(_, used)| {
                        // `tensor(0.5, device='cuda:0')` is one value, `[1, 2]` are two.
                        !rest.starts_with(['[', '(']) || !rest[*used..end].contains(',')
                    });
                    self.add(&name, value.filter(|_| is_name).map(|(value, _)| value));
                    self.at += end;
                }
            }
        }
    }

    fn add(&mut self, name: &str, value: Option<f64>) {
        if let Some(value) = value.filter(|_| self.reading.values.len() < self.limits.1) {
            self.reading.values.push((name.to_owned(), value));
        }
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn skip(&mut self, is_skipped: impl Fn(char) -> bool) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches(is_skipped).len();
    }

    fn take(&mut self, sign: char) -> bool {
        let takes = self.rest().starts_with(sign);
        self.at += if takes { sign.len_utf8() } else { 0 };
        takes
    }

    /// A text between quotes.
    fn quoted(&mut self) -> Option<&'a str> {
        let rest = self.rest();
        let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let inside = &rest[1..];
        let end = inside.find(quote)?;
        self.at += end + 2;
        Some(&inside[..end])
    }
}

/// The end of a value in a dictionary: a comma or a brace outside of its own brackets.
fn end_of_value(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '[' | '(' | '{' => depth += 1,
            ']' | ')' if depth > 0 => depth -= 1,
            '}' if depth > 0 => depth -= 1,
            '}' | ',' if depth == 0 => return Some(at),
            _ => {}
        }
    }
    None
}

/// A named number.
#[derive(Debug, Clone, PartialEq)]
struct NamedNumber {
    name: String,
    value: f64,
    total: Option<f64>,
}

/// The pairs of a line, if it has the form of a report.
fn pairs(text: &str, meanings: &Meanings) -> Option<PrintedValues> {
    let signed = signed(text, meanings);
    let beside = if text.len() <= LOOSE_LINE { loose(text, meanings) } else { Vec::new() };
    let is_known = |pair: &NamedNumber| meanings.of(&pair.name).is_some();
    if signed.len() + beside.len() < 2 && !signed.iter().any(is_known) {
        return None;
    }
    let evaluation = about_evaluation(text);
    let mut reading = PrintedValues::default();
    let listed = if text.len() <= LOOSE_LINE { columns(text) } else { Vec::new() };
    let mut known: Vec<String> = Vec::new();
    for mut pair in beside.into_iter().chain(signed).chain(listed) {
        if known.contains(&pair.name) || known.len() >= VALUES {
            continue;
        }
        known.push(pair.name.clone());
        if let Some(group) = &evaluation {
            let is_named = pair.name.to_ascii_lowercase().starts_with(group.as_str());
            pair.name = if is_named { pair.name } else { format!("{group}/{}", pair.name) };
        }
        reading.add_pair(pair);
    }
    Some(reading)
}

/// The first word of a line about an evaluation, in lower case: its values have the names of training. Acme writes it
/// in brackets: `[Evaluator] Episode Return = 3`.
fn about_evaluation(text: &str) -> Option<String> {
    let text = text.strip_prefix('[').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_alphabetic())?;
    let word = text[..end].to_ascii_lowercase();
    let is_alone = text[end..].starts_with([' ', ':', ']']) && !text[end..].trim_start().starts_with('=');
    (is_alone && EVALUATIONS.contains(&word.as_str())).then_some(word)
}

/// Pairs with `=` or `:` between name and number.
fn signed(text: &str, meanings: &Meanings) -> Vec<NamedNumber> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(step) = bytes[from..].iter().position(|byte| matches!(byte, b'=' | b':')) {
        let sign = from + step;
        from = sign + 1;
        if found.len() >= VALUES {
            break;
        }
        if let Some((pair, end)) = pair_at(text, sign, meanings) {
            found.push(pair);
            from = end.max(from);
        }
    }
    found
}

/// The pair around a sign, and where it ends.
fn pair_at(text: &str, sign: usize, meanings: &Meanings) -> Option<(NamedNumber, usize)> {
    let bytes = text.as_bytes();
    let is_colon = bytes[sign] == b':';
    let before = sign.checked_sub(1).map(|at| bytes[at])?;
    let after = *bytes.get(sign + 1)?;
    let is_operator = match is_colon {
        true => before == b':' || matches!(after, b':' | b'=' | b'/'),
        false => b"=!<>:~+*/|&^%".contains(&before) || matches!(after, b'=' | b'>'),
    };
    if is_operator {
        return None;
    }
    let rest = &text[sign + 1..];
    let value_text = rest.trim_start_matches([' ', '\t']);
    let gap = rest.len() - value_text.len();
    let (value, used) = leading(value_text).filter(|_| gap <= GAP)?;
    let (name, begin) = name_before(&text[..sign])?;
    let is_path = begin > 0 && b"?&@$%\\/".contains(&bytes[begin - 1]);
    // `main.py:12`, `10.0.0.1:80`, `'cuda:0'`, but `step:1 - critic/score/mean:0.5` of verl.
    let is_quoted = begin > 0 && matches!(bytes[begin - 1], b'"' | b'\'');
    let is_listed = text[..begin].ends_with(" - ");
    let is_named = name.contains('.') || name.contains('/') && !is_listed;
    let is_place = is_colon && gap == 0 && (is_named || is_quoted);
    if is_path || is_place || LEVELS.contains(&name) {
        return None;
    }
    let name = with_words_before(&text[..begin], name, meanings);
    let end = sign + 1 + gap + used;
    Some((NamedNumber { name, value, total: total(&text[end..]) }, end))
}

/// The name at the end of a text, and where it begins.
fn name_before(text: &str) -> Option<(&str, usize)> {
    let end = text.trim_end_matches([' ', '\t']);
    if text.len() - end.len() > GAP {
        return None;
    }
    let (name, begin) = match end.strip_suffix(['"', '\'']) {
        Some(inside) => {
            let quote = end.as_bytes()[end.len() - 1] as char;
            let begin = inside.rfind(quote)? + 1;
            (&inside[begin..], begin - 1)
        }
        None => {
            let begin = end.rfind(|c: char| !is_name_part(c)).map_or(0, |at| at + len_at(end, at));
            (&end[begin..], begin)
        }
    };
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    (begins && name.len() <= NAME && name.chars().all(is_name_part)).then_some((name, begin))
}

fn is_name_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-./@%#".contains(c)
}

fn len_at(text: &str, at: usize) -> usize {
    text[at..].chars().next().map_or(1, char::len_utf8)
}

/// `Mean reward` of `Mean reward: 3`, where the words together have a meaning.
fn with_words_before(before: &str, name: &str, meanings: &Meanings) -> String {
    let mut whole = name.to_owned();
    let mut best = name.to_owned();
    let mut before = before;
    for _ in 0..WORDS_BEFORE {
        let Some(words) = before.strip_suffix(' ') else { break };
        let begin = words
            .rfind(|c: char| !c.is_ascii_alphabetic() && c != '_')
            .map_or(0, |at| at + len_at(words, at));
        let word = &words[begin..];
        if word.is_empty() {
            break;
        }
        whole = format!("{word} {whole}");
        if whole.len() <= NAME && meanings.of(&whole).is_some() {
            best.clone_from(&whole);
        }
        before = &words[..begin];
    }
    best
}

/// Names with a meaning, each with a number behind it: `step 3`, `Epoch [3/10]`.
fn loose(text: &str, meanings: &Meanings) -> Vec<NamedNumber> {
    let mut found = Vec::new();
    let mut before: Option<&str> = None;
    for word in text.split_whitespace() {
        let bare = word.trim_start_matches(['[', '(', '#', '|', '{']);
        let digits = bare.trim_end_matches([':', ',', ';', '|', ')', ']']);
        let starts = digits.starts_with(|c: char| c.is_ascii_digit() || c == '-');
        if let Some(name) = before.filter(|_| starts)
            && let Some((value, used)) = leading(digits)
            && meanings.of(name).is_some()
            && found.len() < VALUES
        {
            found.push(NamedNumber { name: name.to_owned(), value, total: total(&digits[used..]) });
        }
        let name = bare.trim_end_matches([',', '|']);
        let is_name = name.len() <= NAME
            && name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.chars().all(is_name_part);
        before = is_name.then_some(name);
    }
    found
}

/// Columns of a line, each a name and a number: `step 3 | acc 0.5`.
fn columns(text: &str) -> Vec<NamedNumber> {
    let parts = text.split(['|', ',', ';', '\t']).take(CELLS);
    let pairs = parts.filter_map(|part| {
        let (name, value) = part.trim().split_once(' ')?;
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.len() <= NAME
            && name.chars().all(is_name_part);
        let value = number(value.trim()).filter(|_| is_name)?;
        Some(NamedNumber { name: name.to_owned(), value, total: None })
    });
    pairs.collect()
}

/// The number that is all of a text.
fn number(text: &str) -> Option<f64> {
    let (value, used) = leading(text)?;
    let rest = text[used..].trim();
    // The deviation of `21.3 +/- 4.5` is left out.
    let is_whole = matches!(rest, "" | "." | "%") || rest.starts_with("+/-") || rest.starts_with('±');
    is_whole.then_some(value)
}

/// The end of a counter behind its number: `/500`.
fn total(text: &str) -> Option<f64> {
    let (value, _) = leading(text.trim_start().strip_prefix('/')?.trim_start())?;
    Some(value).filter(|value| value.is_finite())
}

/// The number at the start of a text, and how many bytes belong to it.
fn leading(text: &str) -> Option<(f64, usize)> {
    let mut at = 0;
    let mut wrapped = false;
    for _ in 0..3 {
        let Some(wrapper) = WRAPPERS.iter().find(|wrapper| text[at..].starts_with(**wrapper)) else { break };
        at += wrapper.len();
        at += text[at..].len() - text[at..].trim_start_matches(' ').len();
        // One number of a list is not a value.
        wrapped |= wrapper.ends_with('[') || *wrapper == "(";
    }
    // In a list, a comma stands between numbers.
    let (value, length) = digits(&text[at..], !wrapped)?;
    at += length;
    let rest = &text[at..];
    if wrapped {
        let inside = rest.trim_start_matches(['.', ' ']);
        return inside.starts_with([']', ')']).then(|| {
            let closing = inside.trim_start_matches([']', ')', ' ']);
            (value, text.len() - closing.len())
        });
    }
    let ends = |rest: &str| {
        let next = rest.chars().next();
        let mut after = rest.chars().skip(1);
        match next {
            None => true,
            Some('.') => after.next().is_none_or(char::is_whitespace),
            Some(c) => c.is_whitespace() || ",;|)]}>\"'%/•±│┃".contains(c),
        }
    };
    if ends(rest) {
        return Some((value, at));
    }
    let suffix = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
    let factor = match &rest[..suffix] {
        "k" | "K" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "s" | "ms" | "us" | "it" | "fps" | "steps" => 1.0,
        _ => return None,
    };
    ends(&rest[suffix..]).then_some((value * factor, at + suffix))
}

/// Reads digits with sign and exponent, with separators between groups if `grouped`, or NaN or infinity.
fn digits(text: &str, grouped: bool) -> Option<(f64, usize)> {
    let bytes = text.as_bytes();
    let sign = usize::from(matches!(bytes.first(), Some(b'-' | b'+')));
    for (word, value) in
        [("nan", f64::NAN), ("NaN", f64::NAN), ("inf", f64::INFINITY), ("Infinity", f64::INFINITY)]
    {
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        if text[sign..].strip_prefix(word).is_some_and(ends) {
            return Some((if bytes[0] == b'-' { -value } else { value }, sign + word.len()));
        }
    }
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut at = sign;
    while is_digit(at)
        || (at > sign && bytes.get(at) == Some(&b'_') && is_digit(at + 1))
        || (grouped && is_group(bytes, sign, at))
    {
        at += 1;
    }
    let has_digits = at > sign;
    if bytes.get(at) == Some(&b'.') && (has_digits || is_digit(at + 1)) && !ends_sentence(bytes, at) {
        at += 1;
        while is_digit(at) {
            at += 1;
        }
    }
    if at == sign || !bytes[sign..at].iter().any(u8::is_ascii_digit) {
        return None;
    }
    if matches!(bytes.get(at), Some(b'e' | b'E')) {
        let exponent = at + 1 + usize::from(matches!(bytes.get(at + 1), Some(b'-' | b'+')));
        if is_digit(exponent) {
            at = exponent;
            while is_digit(at) {
                at += 1;
            }
        }
    }
    let raw = &text[..at];
    let value = match raw.contains(['_', ',']) {
        true => raw.replace(['_', ','], "").parse::<f64>(),
        false => raw.parse::<f64>(),
    };
    Some((value.ok()?, at))
}

/// A comma between groups of three digits: `1,024`.
fn is_group(bytes: &[u8], sign: usize, at: usize) -> bool {
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let length = bytes[sign..at].iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    bytes.get(at) == Some(&b',')
        && (1..=3).contains(&length)
        && (at + 1..at + 4).all(is_digit)
        && !is_digit(at + 4)
}

/// The dot ends the sentence, not the number: `acc=1.`
fn ends_sentence(bytes: &[u8], dot: usize) -> bool {
    bytes.get(dot + 1).is_some_and(|byte| !byte.is_ascii_digit() && !b" ]),;eE\t".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(lines: &[&str]) -> Vec<PrintedValues> {
        let (mut reader, mut all) = (MetricLineParser::default(), Vec::new());
        for line in lines {
            reader.line(line, &Meanings::default(), |reading| all.push(reading));
        }
        reader.end(|reading| all.push(reading));
        all
    }

    /// The values of a line, as `name=value`.
    fn read(line: &str) -> String {
        let texts = readings(&[line]).into_iter().map(|reading| text(&reading));
        texts.collect::<Vec<_>>().join(" / ")
    }

    fn text(reading: &PrintedValues) -> String {
        let values: Vec<String> =
            reading.values.iter().map(|(name, value)| format!("{name}={value}")).collect();
        values.join(" ")
    }

    #[test]
    fn printed_1_pairs_are_read() {
        for (line, expected) in [
            ("global_step=100, episodic_return=3", "global_step=100 episodic_return=3"),
            ("global_step=180, episodic_return=[30.]", "global_step=180 episodic_return=30"),
            ("global_step=8, episodic_return=[ 30.5]", "global_step=8 episodic_return=30.5"),
            ("SPS: 2048", "SPS=2048"),
            ("step 3 loss: -1.5e-3, acc=0.5.", "step=3 loss=-0.0015 acc=0.5"),
            ("step 3 loss 0.25 acc 1", "step=3 loss=0.25"),
            ("Epoch 3 | loss 0.5 | acc 0.9", "Epoch=3 loss=0.5 acc=0.9"),
            ("Epoch [3/10], Loss: 0.52", "Epoch=3 Loss=0.52"),
            ("[INFO] 2026-11-29 05:51:00 train/loss=0.5 lr=1e-4", "train/loss=0.5 lr=0.0001"),
            ("INFO:root:loss=0.5", "loss=0.5"),
            ("Mean reward: 12.3", "Mean reward=12.3"),
            ("step 1,024 | loss: 0.5", "step=1024 loss=0.5"),
            ("loss   :   0.5", "loss=0.5"),
            ("loss = nan", "loss=NaN"),
            ("loss=tensor(0.5, device='cuda:0') acc=1", "loss=0.5 acc=1"),
            ("x=np.float64(0.5), y=1", "x=0.5 y=1"),
            ("fps=1.3k it=2", "fps=1300 it=2"),
            ("saving next best rewards:  [21.3]", "rewards=21.3"),
            ("\u{1b}[32mloss=0.5\u{1b}[0m", "loss=0.5"),
            (
                "Eval num_timesteps=10000, episode_reward=21.30 +/- 4.50",
                "eval/num_timesteps=10000 eval/episode_reward=21.3",
            ),
            (
                "Epoch #1: test_reward: 100.5 ± 0.1, best_reward: 100.5 ± 0.1 in #1",
                "Epoch=1 test_reward=100.5 best_reward=100.5",
            ),
            (
                "(TaskRunner pid=9) step:1 - actor/pg_loss:0.5 - critic/score/mean:0.25 - lr:1e-6",
                "pid=9 step=1 actor/pg_loss=0.5 critic/score/mean=0.25 lr=0.000001",
            ),
            (
                "[Evaluator] Actor Steps = 1000 | Episode Length = 20 | Episode Return = 5.0",
                "evaluator/Steps=1000 evaluator/Episode Length=20 evaluator/Episode Return=5",
            ),
            ("[Learner] Critic Loss = 0.5 | Learner Steps = 10", "Critic Loss=0.5 Steps=10"),
            ("Evaluation over 10 episodes: 12.345", "eval/episode_return=12.345"),
            (
                "Evaluation over 10 episodes: 12.345 , D4RL score: 45.6",
                "eval/episode_return=12.345 eval/score=45.6",
            ),
            (
                "Total T: 1000 Episode Num: 5 Episode T: 200 Reward: 12.5",
                "Total T=1000 Num=5 T=200 Reward=12.5",
            ),
            (
                "Last 10 training episodes: mean/median reward 21.3/20.0, min/max reward 1.0/30.0",
                "reward=21.3",
            ),
            (
                "[INFO] 3DBall. Step: 12000. Time Elapsed: 30.1 s. Mean Reward: 1.2. Std of Reward: 0.7.",
                "Step=12000 Elapsed=30.1 Mean Reward=1.2 Reward=0.7",
            ),
        ] {
            assert_eq!(read(line), expected, "{line}");
        }
    }

    #[test]
    fn printed_1_prose_is_not_read() {
        for line in [
            "",
            "saved checkpoint at step 300",
            "loading data from 3 files",
            "listening on localhost:8080",
            "main.py:12: UserWarning: x is deprecated",
            "http://host/x?a=1&b=2",
            "pip install torch==2.1 numpy==1.26",
            "python train.py --lr=0.1 --steps=5",
            "elapsed: 00:10:00",
            "if a <= 3 and b >= 4:",
            "GPU: 45C",
            "commit=12ab34 tag=v2x",
            "INFO: 5 workers",
            "seeds: [1, 2, 3]",
            "step 3/10",
            "{x} {y}",
            "{'a': 'text', 'b': None}",
            "| a | b | c",
            "--- 3 ---",
            "12:00:00 - src/train.py:12 - INFO - module:3 started",
            "Evaluation over all episodes: done",
        ] {
            assert_eq!(read(line), "", "{line}");
        }
    }

    #[test]
    fn dictionaries_are_read() {
        for (line, expected) in [
            (
                "{'loss': '5.993', 'grad_norm': '1.2', 'learning_rate': '4.9e-05', 'epoch': 0.1}",
                "loss=5.993 grad_norm=1.2 learning_rate=0.000049 epoch=0.1",
            ),
            (r#"{"step": 3, "loss": 0.25}"#, "step=3 loss=0.25"),
            (
                r#"INFO step 20: {"losses": {"policy": 0.5, "value": [1.5]}}"#,
                "step=20 losses/policy=0.5 losses/value=1.5",
            ),
            ("{'a': tensor(0.5, device='cuda:0'), 'b': np.float64(2.0), 'c': True}", "a=0.5 b=2"),
            ("{'loss': 1, 'v': [1, 2], 'n': 'x'}", "loss=1"),
            ("{'loss': 1, 'cut", "loss=1"),
            (r#"{"loss":1,"v":[100,200],"n":[300]}"#, "loss=1 n=300"),
        ] {
            assert_eq!(read(line), expected, "{line}");
        }
    }

    #[test]
    fn table_of_stable_baselines_has_sections() {
        let lines = [
            "------------------------------",
            "| rollout/           |       |",
            "|    ep_len_mean     | 22.1  |",
            "|    ep_rew_mean     | 21.3  |",
            "| time/              |       |",
            "|    total_timesteps | 2048  |",
            "| fps                | 1283  |",
            "------------------------------",
        ];
        let all = readings(&lines);
        let expected = "rollout/ep_len_mean=22.1 rollout/ep_rew_mean=21.3 time/total_timesteps=2048 fps=1283";
        assert_eq!(all.iter().map(text).collect::<Vec<_>>(), [expected]);
        // A line of another writer between the rows.
        let split: Vec<&str> =
            lines[..3].iter().chain(&["UserWarning: x"]).chain(&lines[3..]).copied().collect();
        let all: Vec<String> = readings(&split).iter().map(text).collect();
        assert_eq!(all.len(), 2);
        assert!(all[1].starts_with("rollout/ep_rew_mean=21.3 "), "{all:?}");
    }

    #[test]
    fn tables_with_names_over_values_are_read() {
        let ding = [
            "+-------+------------+-------------+",
            "| Name  | train_iter | reward_mean |",
            "+-------+------------+-------------+",
            "| Value | 300.000000 | 21.500000   |",
            "+-------+------------+-------------+",
            "+-------+---------------+",
            "| Name  | evaluate_time |",
            "+-------+---------------+",
            "| Value | 0.5           |",
            "+-------+---------------+",
            "",
        ];
        let all: Vec<String> = readings(&ding).iter().map(text).collect();
        assert_eq!(all, ["eval/train_iter=300 eval/reward_mean=21.5 eval/evaluate_time=0.5"]);
        let rich = [
            "┏━━━━━━━┳━━━━━━┓",
            "┃ epoch ┃ loss ┃",
            "┡━━━━━━━╇━━━━━━┩",
            "│ 1     │ 0.5  │",
            "│ 2     │ 0.4  │",
            "└───────┴──────┘",
        ];
        let all: Vec<String> = readings(&rich).iter().map(text).collect();
        assert_eq!(all, ["epoch=1 loss=0.5", "epoch=2 loss=0.4"]);
        let lightning = [
            "┃        Test metric        ┃       DataLoader 0        ┃",
            "│         test_loss         │    0.82                   │",
        ];
        assert_eq!(readings(&lightning).iter().map(text).collect::<Vec<_>>(), ["test_loss=0.82"]);
    }

    #[test]
    fn tables_of_ray_tune_are_read() {
        let old = [
            "+-----------------------------+----------+-----------------+--------+------------------+-------+----------+",
            "| Trial name                  | status   | loc             |   iter |   total time (s) |    ts |   reward |",
            "|-----------------------------+----------+-----------------+--------+------------------+-------+----------|",
            "| PPO_CartPole-v1_0a1b2_00000 | RUNNING  | 10.0.0.1:12345  |      3 |          12.3456 | 12000 |    35.21 |",
            "+-----------------------------+----------+-----------------+--------+------------------+-------+----------+",
            "",
        ];
        let all: Vec<String> = readings(&old).iter().map(text).collect();
        assert_eq!(all, ["iter=3 total time (s)=12.3456 timesteps_total=12000 reward=35.21"]);
        let new = [
            "Trial PPO_CartPole-v1_0a1b2_00000 finished iteration 3 at 2026-11-30 12:00:00. Total running time: 12s",
            "╭───────────────────────────────────────────────────────────────╮",
            "│ Trial PPO_CartPole-v1_0a1b2_00000 result                      │",
            "├───────────────────────────────────────────────────────────────┤",
            "│ env_runners/episode_return_mean                         35.21 │",
            "│ num_env_steps_sampled_lifetime                          12000 │",
            "╰───────────────────────────────────────────────────────────────╯",
            "╭───────────────────────────────────────────────────────────────────────────────╮",
            "│ Trial name                    status       iter     total time (s)       ts   │",
            "├───────────────────────────────────────────────────────────────────────────────┤",
            "│ PPO_CartPole-v1_0a1b2_00000   RUNNING         3            12.3456    12000   │",
            "╰───────────────────────────────────────────────────────────────────────────────╯",
        ];
        let all: Vec<String> = readings(&new).iter().map(text).collect();
        let expected = [
            "iteration=3 time=12",
            "env_runners/episode_return_mean=35.21 num_env_steps_sampled_lifetime=12000",
            "iter=3 total time (s)=12.3456 timesteps_total=12000",
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn lines_of_composer_are_read() {
        let lines = [
            "[epoch=1][batch=10/100]:",
            "\t Train time/epoch: 0",
            "\t Train time/batch: 9",
            "\t Train loss/train/total: 2.3026",
            "\t Train metrics/train/MulticlassAccuracy: 0.1000",
            "[Eval batch=4/4] Eval on eval data:",
            "\t Eval metrics/eval/MulticlassAccuracy: 0.2500",
            "Train the model: 5",
            "Train src/a.py:12",
        ];
        let all: Vec<String> = readings(&lines).iter().map(text).collect();
        let expected = [
            "epoch=1 batch=10",
            "time/epoch=0",
            "time/batch=9",
            "loss/train/total=2.3026",
            "metrics/train/MulticlassAccuracy=0.1",
            "metrics/eval/MulticlassAccuracy=0.25",
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn objects_of_files_may_be_deep() {
        let line = r#"{"info": {"learner": {"default_policy": {"learner_stats": {"vf_loss": 0.5}}}}, "hist_stats": {"episode_reward": [1, 2]}, "episode_reward_mean": 21.5, "timesteps_total": 4000, "done": false, "x": null}"#;
        let values = object(line);
        let names: Vec<String> = values.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let expected = [
            "info/learner/default_policy/learner_stats/vf_loss=0.5",
            "episode_reward_mean=21.5",
            "timesteps_total=4000",
        ];
        assert_eq!(names, expected);
        let many: Vec<String> = (0..2000).map(|n| format!("\"a{n}\": 1")).collect();
        assert_eq!(object(&format!("{{{}}}", many.join(", "))).len(), OBJECT_VALUES);
    }

    #[test]
    fn counters_with_an_end_have_totals() {
        let line = "fps step: 12345 fps step and policy inference: 1234 fps total: 1234 epoch: 3/500 frames: 49152/8000000";
        let reading = &readings(&[line])[0];
        assert_eq!(text(reading), "fps=1234 epoch=3 frames=49152");
        assert_eq!(reading.totals, [("epoch".to_owned(), 500.0), ("frames".to_owned(), 8e6)]);
        assert_eq!(readings(&["Epoch [3/10], Loss: 0.5"])[0].totals, [("Epoch".to_owned(), 10.0)]);
    }

    #[test]
    fn values_behind_a_bar_are_listed() {
        let reading = listed("v_num=0, train_loss=0.123", &Meanings::default());
        assert_eq!(text(&reading), "v_num=0 train_loss=0.123");
    }

    #[test]
    fn printed_2_values_are_bounded() {
        let many: Vec<String> = (0..1000).map(|n| format!("a{n}=1")).collect();
        assert_eq!(readings(&[&many.join(" ")])[0].values.len(), VALUES);
        let rows: Vec<String> = (0..1000).map(|n| format!("| a{n} | 1 |")).collect();
        let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
        assert_eq!(readings(&rows)[0].values.len(), VALUES);
        let deep = "{'a': ".repeat(3000);
        assert_eq!(read(&deep), "");
    }
}
