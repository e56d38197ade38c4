//! Truncates the texts of a packed state before it is decoded, so that texts that no type of the model bounds
//! are bounded, too.

use rankdeck_proto::media::PICTURE_BYTES;

/// Most bytes of a text: a log line of invalid UTF-8.
const LONGEST: usize = 12 << 10;
/// Most bytes of a picture, as base64.
const PICTURE: usize = PICTURE_BYTES.div_ceil(3) * 4;
/// Name of the field that holds it.
const PICTURE_KEY: &[u8] = b"data";

/// One token of MessagePack.
struct Token<'a> {
    /// Kind and length.
    head: &'a [u8],
    /// Its content, if it is a text.
    text: Option<&'a [u8]>,
}

/// Splits the first token off; `None` at the end, or where the rest is malformed.
fn next<'a>(rest: &mut &'a [u8]) -> Option<Token<'a>> {
    let tag = *rest.first()?;
    // Bytes of the number behind the tag, and whether that is a length.
    let (width, is_length) = match tag {
        0xc4 | 0xc7 | 0xd9 => (1, true),
        0xc5 | 0xc8 | 0xda => (2, true),
        0xc6 | 0xc9 | 0xdb => (4, true),
        0xcc | 0xd0 => (1, false),
        0xcd | 0xd1 | 0xdc | 0xde => (2, false),
        0xca | 0xce | 0xd2 | 0xdd | 0xdf => (4, false),
        0xcb | 0xcf | 0xd3 => (8, false),
        0xd4..=0xd8 => (1 + (1 << (tag - 0xd4)), false),
        _ => (0, false),
    };
    let number = rest.get(1..=width)?.iter().fold(0, |number: usize, byte| number << 8 | usize::from(*byte));
    let is_text = matches!(tag, 0xa0..=0xbf | 0xd9..=0xdb);
    let length = match tag {
        0xa0..=0xbf => usize::from(tag & 31),
        // One byte more: the type of an extension.
        0xc7..=0xc9 => number + 1,
        _ if is_length => number,
        _ => 0,
    };
    let (head, behind) = rest.split_at_checked(1 + width)?;
    let (content, behind) = behind.split_at_checked(length)?;
    *rest = behind;
    Some(Token { head, text: is_text.then_some(content) })
}

/// Cuts every text of a packed state to [`LONGEST`], those of pictures to [`PICTURE`].
pub(super) fn cut(state: Vec<u8>) -> Vec<u8> {
    let mut cut = Vec::new();
    let (mut rest, mut kept, mut key) = (state.as_slice(), 0, &[][..]);
    while let Some(token) = next(&mut rest) {
        let Some(text) = token.text else { continue };
        let most = if key == PICTURE_KEY { PICTURE } else { LONGEST };
        key = text;
        if text.len() > most {
            let end = state.len() - rest.len();
            cut.extend_from_slice(&state[kept..end - text.len() - token.head.len()]);
            pack(text, most, &mut cut);
            kept = end;
        }
    }
    if kept == 0 {
        return state;
    }
    cut.extend_from_slice(&state[kept..]);
    cut
}

fn pack(text: &[u8], most: usize, into: &mut Vec<u8>) {
    // A character begins with a byte that continues none.
    let end = (0..=most).rev().find(|end| text.get(*end).is_some_and(|byte| byte & 0xc0 != 0x80));
    let mark = "…".as_bytes();
    let text = text.get(..end.unwrap_or(0)).unwrap_or_default();
    into.push(0xdb);
    into.extend(((text.len() + mark.len()) as u32).to_be_bytes());
    into.extend_from_slice(text);
    into.extend_from_slice(mark);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::{Deserialize, Serialize};
    use std::collections::BTreeMap;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Sample {
        name: String,
        data: String,
        numbers: (u8, i16, u32, i64, f32, f64, bool, Option<char>),
        lists: Vec<Vec<u64>>,
        map: BTreeMap<String, Vec<String>>,
    }

    fn sample(name: &str, data: usize) -> Sample {
        Sample {
            name: name.into(),
            data: "A".repeat(data),
            numbers: (200, -300, 70_000, i64::MIN, 1.5, -2.5, true, Some('é')),
            lists: vec![(0..70_000).collect(), Vec::new()],
            map: (0..40).map(|n| (format!("key{n}"), vec!["x".repeat(n * 10); 3])).collect(),
        }
    }

    fn through(sample: &Sample) -> Sample {
        let mut bytes = Vec::new();
        sample.serialize(&mut rmp_serde::Serializer::new(&mut bytes).with_struct_map()).unwrap();
        rmp_serde::from_slice(&cut(bytes)).unwrap()
    }

    #[test]
    fn trace_5_long_texts_are_cut_and_nothing_else_changes() {
        for (length, data) in [(0, 0), (31, 31), (300, LONGEST + 1), (LONGEST, PICTURE)] {
            let short = sample(&"é".repeat(length / 2), data);
            assert_eq!(through(&short), short);
        }
        let mut long = sample(&"é".repeat(LONGEST), PICTURE + 1);
        long.map.insert("k".repeat(LONGEST + 1), vec!["y".repeat(1 << 20), "z".into()]);
        let read = through(&long);
        assert!(read.name.ends_with("é…") && read.name.len() <= LONGEST + 3, "{}", read.name.len());
        assert_eq!(read.data.len(), PICTURE + 3);
        let (key, values) = read.map.iter().find(|(key, _)| key.starts_with("kkk")).unwrap();
        assert_eq!((key.len(), values[0].len(), values[1].as_str()), (LONGEST + 3, LONGEST + 3, "z"));
        assert_eq!((&read.numbers, &read.lists), (&long.numbers, &long.lists));
    }

    #[test]
    fn malformed_bytes_are_left_to_their_reader() {
        for bytes in
            [&[0xdb, 0xff, 0xff, 0xff, 0xff, 1][..], &[0xc9, 0xff, 0xff, 0xff, 0xff], &[0xda, 1], &[0xc1]]
        {
            assert_eq!(cut(bytes.to_vec()), bytes);
        }
    }
}
