//! Mutations of fields: messages and states that are well-formed, with absurd numbers, texts and lists.

use rankdeck_testkit::fuzz::Random;
use serde_json::Value;

/// A value of JSON or MessagePack.
#[derive(Debug, Clone)]
enum Tree {
    Nil,
    Flag(bool),
    Int(i128),
    Single(f32),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Tree>),
    Map(Vec<(Tree, Tree)>),
}

const INTS: [i128; 12] = [
    0,
    1,
    -1,
    i64::MIN as i128,
    i64::MAX as i128,
    u64::MAX as i128,
    u32::MAX as i128,
    u32::MAX as i128 + 1,
    i32::MIN as i128,
    1 << 40,
    -(1 << 40),
    4096,
];
const FLOATS: [f64; 12] = [
    0.0,
    -0.0,
    -1.5,
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::MAX,
    f64::MIN,
    5e-324,
    1e18,
    -1e18,
    1e9,
];
const TEXTS: [&str; 11] = [
    "",
    "\u{1b}]0;PWNED\u{7}\u{1b}[31m\u{9b}31m",
    "\"><script>document.title=1</script>",
    "<img src=x onerror=alert(1)>",
    "../../../etc/passwd",
    "\u{202e}\u{feff}\u{2028}",
    "a\nb\r\nc\tlatest",
    "`|](x)![y](javascript:1)",
    "{seed} ${HOME} %s",
    "NaN",
    "-9223372036854775808",
];

fn pick<T: Clone>(all: &[T], random: &mut Random) -> T {
    all[random.below(all.len())].clone()
}

/// A value of the same kind, which its reader probably accepts.
fn absurd(tree: &Tree, random: &mut Random) -> Tree {
    match tree {
        Tree::Nil => Tree::Int(pick(&INTS, random)),
        Tree::Flag(flag) => Tree::Flag(!flag),
        Tree::Int(_) if random.below(8) > 0 => Tree::Int(pick(&INTS, random)),
        Tree::Single(_) => Tree::Single(pick(&FLOATS, random) as f32),
        Tree::Int(_) | Tree::Float(_) => Tree::Float(pick(&FLOATS, random)),
        Tree::Text(text) if random.below(8) == 0 => {
            let text = if text.is_empty() { "\u{e9}" } else { text };
            Tree::Text(text.repeat(1 << random.below(14)).chars().take(100_000).collect())
        }
        Tree::Text(_) => Tree::Text(pick(&TEXTS, random).to_owned()),
        Tree::Bytes(bytes) => Tree::Bytes(bytes.iter().map(|byte| byte ^ 0x55).collect()),
        Tree::List(list) if list.is_empty() => Tree::List(vec![Tree::Int(pick(&INTS, random))]),
        Tree::List(list) => {
            let mut list = list.clone();
            let at = random.below(list.len());
            match random.below(4) {
                0 => list.clear(),
                1 => drop(list.remove(at)),
                2 => list.reverse(),
                _ => {
                    let again = vec![list[at].clone(); 1 << random.below(11)];
                    list.splice(at..at, again);
                }
            }
            Tree::List(list)
        }
        Tree::Map(map) if map.is_empty() => Tree::Nil,
        Tree::Map(map) => {
            let mut map = map.clone();
            let (one, other) = (random.below(map.len()), random.below(map.len()));
            match random.below(3) {
                0 => drop(map.remove(one)),
                1 => map[one].1 = map[other].1.clone(),
                _ => {
                    let (key, value) = map[one].clone();
                    map.push((absurd(&key, random), value));
                }
            }
            Tree::Map(map)
        }
    }
}

impl Tree {
    fn inner(&mut self) -> Vec<&mut Tree> {
        match self {
            Tree::List(list) => list.iter_mut().collect(),
            Tree::Map(map) => map.iter_mut().map(|(_, value)| value).collect(),
            _ => Vec::new(),
        }
    }

    /// Some value in it: all levels alike, or large lists would get everything.
    fn some(&mut self, random: &mut Random) -> &mut Tree {
        let depth = random.below(12);
        let mut tree = self;
        for _ in 0..depth {
            let count = tree.inner().len();
            if count == 0 {
                break;
            }
            let at = random.below(count);
            tree = tree.inner().swap_remove(at);
        }
        tree
    }

    fn mutate(&mut self, other: &Tree, random: &mut Random) {
        let donor = other.clone().some(random).clone();
        let place = self.some(random);
        *place = if random.below(8) == 0 { donor } else { absurd(place, random) };
    }

    fn of_json(value: &Value) -> Tree {
        match value {
            Value::Null => Tree::Nil,
            Value::Bool(flag) => Tree::Flag(*flag),
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => Tree::Int(number.into()),
                (None, Some(number)) => Tree::Int(number.into()),
                (None, None) => Tree::Float(number.as_f64().unwrap_or(0.0)),
            },
            Value::String(text) => Tree::Text(text.clone()),
            Value::Array(list) => Tree::List(list.iter().map(Tree::of_json).collect()),
            Value::Object(map) => {
                let pair = |(key, value): (&String, &Value)| (Tree::Text(key.clone()), Tree::of_json(value));
                Tree::Map(map.iter().map(pair).collect())
            }
        }
    }

    fn json(&self) -> String {
        match self {
            Tree::Nil | Tree::Bytes(_) => "null".to_owned(),
            Tree::Flag(flag) => flag.to_string(),
            Tree::Int(number) => number.to_string(),
            Tree::Single(number) => serde_json::to_string(number).unwrap(),
            Tree::Float(number) => serde_json::to_string(number).unwrap(),
            Tree::Text(text) => serde_json::to_string(text).unwrap(),
            Tree::List(list) => {
                format!("[{}]", list.iter().map(Tree::json).collect::<Vec<_>>().join(","))
            }
            Tree::Map(map) => {
                let pair = |(key, value): &(Tree, Tree)| {
                    let key = if let Tree::Text(_) = key { key.json() } else { format!("{:?}", key.json()) };
                    format!("{key}:{}", value.json())
                };
                format!("{{{}}}", map.iter().map(pair).collect::<Vec<_>>().join(","))
            }
        }
    }

    /// Reads one value of MessagePack, and moves behind it.
    fn unpack(from: &mut &[u8]) -> Option<Tree> {
        let tag = uint(from, 1)? as u8;
        let big = |from: &mut &[u8], width: usize| uint(from, width);
        Some(match tag {
            0x00..=0x7f => Tree::Int(tag.into()),
            0xe0..=0xff => Tree::Int((tag as i8).into()),
            0x80..=0x8f => map(from, usize::from(tag & 15))?,
            0x90..=0x9f => list(from, usize::from(tag & 15))?,
            0xa0..=0xbf => text(from, usize::from(tag & 31))?,
            0xc0 => Tree::Nil,
            0xc2 | 0xc3 => Tree::Flag(tag == 0xc3),
            0xc4..=0xc6 => {
                let length = big(from, 1 << (tag - 0xc4))? as usize;
                Tree::Bytes(take(from, length)?.to_vec())
            }
            0xca => Tree::Single(f32::from_bits(big(from, 4)? as u32)),
            0xcb => Tree::Float(f64::from_bits(big(from, 8)?)),
            0xcc..=0xcf => Tree::Int(big(from, 1 << (tag - 0xcc))?.into()),
            0xd0..=0xd3 => {
                let width = 1 << (tag - 0xd0);
                let unused = 64 - 8 * width as u32;
                Tree::Int((((big(from, width)? << unused) as i64) >> unused).into())
            }
            0xd9..=0xdb => {
                let length = big(from, 1 << (tag - 0xd9))? as usize;
                text(from, length)?
            }
            0xdc | 0xdd => {
                let length = big(from, 2 << (tag - 0xdc))? as usize;
                list(from, length)?
            }
            0xde | 0xdf => {
                let length = big(from, 2 << (tag - 0xde))? as usize;
                map(from, length)?
            }
            _ => return None,
        })
    }

    fn pack(&self, into: &mut Vec<u8>) {
        let head = |into: &mut Vec<u8>, tag: u8, length: usize| {
            into.push(tag);
            into.extend((length as u32).to_be_bytes());
        };
        match self {
            Tree::Nil => into.push(0xc0),
            Tree::Flag(flag) => into.push(0xc2 + u8::from(*flag)),
            Tree::Int(number) => match (u64::try_from(*number), i64::try_from(*number)) {
                (Ok(number), _) => {
                    into.push(0xcf);
                    into.extend(number.to_be_bytes());
                }
                (Err(_), number) => {
                    into.push(0xd3);
                    into.extend(number.unwrap_or(i64::MIN).to_be_bytes());
                }
            },
            Tree::Single(number) => {
                into.push(0xca);
                into.extend(number.to_bits().to_be_bytes());
            }
            Tree::Float(number) => {
                into.push(0xcb);
                into.extend(number.to_bits().to_be_bytes());
            }
            Tree::Text(text) => {
                head(into, 0xdb, text.len());
                into.extend(text.as_bytes());
            }
            Tree::Bytes(bytes) => {
                head(into, 0xc6, bytes.len());
                into.extend(bytes);
            }
            Tree::List(list) => {
                head(into, 0xdd, list.len());
                list.iter().for_each(|value| value.pack(into));
            }
            Tree::Map(map) => {
                head(into, 0xdf, map.len());
                for (key, value) in map {
                    key.pack(into);
                    value.pack(into);
                }
            }
        }
    }
}

fn take<'a>(from: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(taken)
}

fn uint(from: &mut &[u8], width: usize) -> Option<u64> {
    Some(take(from, width)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn text(from: &mut &[u8], length: usize) -> Option<Tree> {
    Some(Tree::Text(String::from_utf8_lossy(take(from, length)?).into_owned()))
}

fn list(from: &mut &[u8], length: usize) -> Option<Tree> {
    (0..length).map(|_| Tree::unpack(from)).collect::<Option<_>>().map(Tree::List)
}

fn map(from: &mut &[u8], length: usize) -> Option<Tree> {
    let pair = |_| Some((Tree::unpack(from)?, Tree::unpack(from)?));
    (0..length).map(pair).collect::<Option<_>>().map(Tree::Map)
}

/// Lines of JSON; one line is changed.
pub fn mutate_lines(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let parse = |line: &[u8]| serde_json::from_slice::<Value>(line).ok().map(|value| Tree::of_json(&value));
    let mut lines: Vec<Vec<u8>> = bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    let others: Vec<&[u8]> = other.split(|byte| *byte == b'\n').collect();
    let (at, from) = (random.below(lines.len()), random.below(others.len()));
    if let (Some(mut tree), Some(donor)) = (parse(&lines[at]), parse(others[from])) {
        tree.mutate(&donor, random);
        lines[at] = tree.json().into_bytes();
    }
    *bytes = lines.join(&b'\n');
}

/// Entries of a record, each behind its length; one of the first is changed: the state, or an event.
pub fn mutate_entries(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let (mut all, others) = (entries(bytes), entries(other));
    if all.is_empty() || others.is_empty() {
        return;
    }
    // The state is half of what is tried.
    let at = random.below(2) * random.below(all.len());
    let from = random.below(others.len());
    all[at].mutate(&others[from], random);
    *bytes = Vec::new();
    for tree in &all {
        let mut packed = Vec::new();
        tree.pack(&mut packed);
        bytes.extend((packed.len() as u32).to_le_bytes());
        bytes.extend(packed);
    }
}

fn entries(mut bytes: &[u8]) -> Vec<Tree> {
    let mut all = Vec::new();
    while let Some(length) = take(&mut bytes, 4) {
        let length = u32::from_le_bytes(length.try_into().unwrap());
        let Some(mut entry) = take(&mut bytes, length as usize) else { break };
        all.extend(Tree::unpack(&mut entry));
    }
    all
}

/// Every text of it with its path, map keys included.
fn texts<'a>(tree: &'a Tree, path: &str, found: &mut Vec<(String, &'a str)>) {
    match tree {
        Tree::Text(text) => found.push((path.to_owned(), text)),
        Tree::List(list) => list.iter().for_each(|value| texts(value, &format!("{path}/*"), found)),
        Tree::Map(map) => {
            for (key, value) in map {
                texts(key, &format!("{path}/key"), found);
                let name = if let Tree::Text(name) = key { name } else { "*" };
                texts(value, &format!("{path}/{name}"), found);
            }
        }
        _ => {}
    }
}

/// Replaces the texts at the path `at`.
fn replace(tree: &mut Tree, path: &str, at: &str, with: &str) {
    match tree {
        Tree::Text(text) if path == at => *text = with.to_owned(),
        Tree::List(list) => list.iter_mut().for_each(|value| replace(value, &format!("{path}/*"), at, with)),
        Tree::Map(map) => {
            for (key, value) in map {
                let name = if let Tree::Text(name) = key { name } else { "*" };
                replace(value, &format!("{path}/{name}"), at, with);
            }
        }
        _ => {}
    }
}

fn read(tree: &Tree) -> Option<super::Core> {
    let header = super::SegmentHeader::new(super::Timestamp(0), 0.0);
    let mut packed = Vec::new();
    tree.pack(&mut packed);
    let bytes = [&(packed.len() as u32).to_le_bytes()[..], &packed].concat();
    super::trace::SegmentReader::open(&header, &bytes[..], None::<&[u8]>).ok().map(|(core, _)| core)
}

fn state(core: &super::Core) -> Tree {
    let mut bytes = Vec::new();
    super::trace::ConsoleSnapshot::of(core).unwrap().write_to(&mut bytes).unwrap();
    entries(&bytes).swap_remove(0)
}

fn paths(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    texts(tree, "", &mut found);
    let unique: std::collections::BTreeSet<String> = found.into_iter().map(|(path, _)| path).collect();
    unique.into_iter().collect()
}

/// A report of a state with hostile texts wherever its reader accepts them, and beside it, in a real browser.
#[test]
fn report_runs_no_script_in_a_browser() {
    let hostile = rankdeck_testkit::browser::hostile_texts();
    let mut tree = state(&super::recorded_core());
    let mut accepted = 0;
    for (at, path) in paths(&tree).iter().enumerate() {
        let mut changed = tree.clone();
        replace(&mut changed, "", path, &hostile[at % hostile.len()]);
        if read(&changed).is_some() {
            (tree, accepted) = (changed, accepted + 1);
        }
    }
    assert!(accepted > 40, "{accepted}");
    let mut model = read(&tree).unwrap().model().clone();
    let place = |step: f64| rankdeck_core::series::Place { step, ..Default::default() };
    let head = super::media::ImageHeader { format: super::media::ImageFormat::Png, width: 3, height: 2 };
    for text in &hostile {
        let mut series = rankdeck_core::series::Series::default();
        (0..9).for_each(|step| series.push(place(f64::from(step)), f64::from(step)));
        model.scalars.insert(text.clone(), series);
        let map = model.histograms.entry(text.clone()).or_default();
        (0..9).for_each(|step| {
            map.push(place(f64::from(step)), super::Histogram { edges: vec![0.0, 1.0], counts: vec![1.0] })
        });
        model.gallery.push(text.clone(), place(1.0), head, "AAAA".into());
        model.gallery.push("data".into(), place(1.0), head, text.clone());
        let line = super::HistoryLine::new(1, super::Timestamp(1), super::EventTone::Bad, text.clone());
        model.history.push_back(line);
    }
    let [first, second, third, _] = &hostile;
    let sources = super::Sources {
        experiment: hostile.join("\n"),
        origin: hostile.iter().map(|text| (text.clone(), text.clone())).collect(),
        differences: vec![(first.clone(), second.clone(), third.clone())],
        ..Default::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("r.html");
    let html = super::report::html(&model, &sources);
    let shown = html.matches("data-pwned").count();
    assert!(shown > 30, "the texts are shown as texts: {shown}");
    std::fs::write(&page, html).unwrap();
    rankdeck_testkit::browser::assert_inert(&page);
}

/// TRACE-5: whichever text of a state is huge, what is read of it is bounded.
#[test]
fn trace_5_every_text_of_a_state_is_bounded() {
    const MOST: usize = (12 << 10) + 3;
    let seed = state(&super::recorded_core());
    let (huge, mut accepted) = ("x".repeat(100_000), 0);
    for path in &paths(&seed) {
        let mut tree = seed.clone();
        replace(&mut tree, "", path, &huge);
        // Names of kinds are refused.
        let Some(core) = read(&tree) else { continue };
        accepted += 1;
        let again = state(&core);
        let mut left = Vec::new();
        texts(&again, "", &mut left);
        for (at, text) in left.iter().filter(|(_, text)| text.len() > 512) {
            assert!(text.len() <= MOST, "{path}: {} bytes at {at}", text.len());
            let is_name = at.starts_with("/model/") && at.ends_with("/host")
                || at.starts_with("/model/hosts") && at.ends_with("/name");
            assert!(
                !is_name || at.contains("/plan/") || text.len() <= 515,
                "{path}: {} bytes at {at}",
                text.len()
            );
        }
    }
    assert!(accepted > 40, "{accepted}");
}

#[test]
fn record_and_lines_survive_their_tree() {
    let (entries_of_run, _) = super::segment();
    let all = entries(&entries_of_run);
    assert_eq!(all.len(), 41, "a state and 40 events");
    let mut again = Vec::new();
    for tree in &all {
        let mut packed = Vec::new();
        tree.pack(&mut packed);
        again.extend((packed.len() as u32).to_le_bytes());
        again.extend(packed);
    }
    let header = super::SegmentHeader::new(super::Timestamp(0), 0.0);
    let read = |bytes: &[u8]| {
        let (_, mut reader) = super::trace::SegmentReader::open(&header, bytes, None::<&[u8]>).unwrap();
        std::iter::from_fn(|| reader.event()).count()
    };
    assert_eq!((read(&entries_of_run), read(&again)), (40, 40));
    for text in super::messages().iter().take(50) {
        let tree = Tree::of_json(&serde_json::from_str(text).unwrap());
        assert!(serde_json::from_str::<super::AgentMessage>(&tree.json()).is_ok(), "{text}");
    }
}
