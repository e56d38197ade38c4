//! Decodes what a terminal sends: keys, the mouse, pasted text, and its replies to queries.
//!
//! Owner: whoever reads the terminal. No I/O and no clock: the reader waits for [`InputDecoder::patience`].
//! Invariants:
//! - INPUT-1: a reply of the terminal is never taken for a key, however late it arrives and wherever it is cut.
//! - INPUT-2: escape and a key in one read are two keys: no key here is combined with alt, and a slow link
//!   joins what was typed.
//! - INPUT-3: pasted text is never a key.
//! - INPUT-4: at most [`HELD_BYTES`] and [`PASTE_BYTES`] of unfinished input are held.

use crossterm::event::{
    Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use rankdeck_types::escape::{self, ESC};
use std::collections::VecDeque;
use std::time::Duration;

/// How long an escape waits for what belongs to it.
const ESC_WITHIN: Duration = Duration::from_millis(50);
/// How long the rest of a sequence may take.
const REST_WITHIN: Duration = Duration::from_secs(2);
/// Most bytes of an unfinished sequence.
const HELD_BYTES: usize = 4096;
/// Most bytes of a pasted text; the rest is dropped.
const PASTE_BYTES: usize = 1 << 20;
/// Most replies that are waiting to be taken.
const REPLIES: usize = 8;
/// Marks of a pasted text.
const PASTE_NUMBER: u32 = 200;
const PASTE_END: &[u8] = b"\x1b[201~";

/// Turns bytes into events.
#[derive(Debug, Default)]
pub struct InputDecoder {
    held: Vec<u8>,
    /// The pasted text so far.
    pasted: Option<Vec<u8>>,
    events: VecDeque<Event>,
    replies: VecDeque<Vec<u8>>,
    /// An escape has been taken for a key because nothing followed it.
    cut: bool,
}

/// Whether a reply without its escape was read at once, faster than anyone types.
fn is_rest_of_reply(bytes: &[u8]) -> bool {
    matches!(
        bytes,
        [b']', b'0'..=b'9', b'0'..=b'9' | b';', ..]
            | [b'[', b'?' | b'>' | b'0'..=b'9', _, ..]
            | [b'P', b'0'..=b'9' | b'>' | b'!', _, ..]
            | [b'_', b'G', _, ..]
    )
}

/// What stands at the start of the input.
enum InputToken {
    /// Nothing of use.
    Nothing,
    Event(Event),
    /// A reply of the terminal.
    Reply,
    /// A pasted text begins.
    Paste,
}

impl InputDecoder {
    /// Adds what was read.
    pub fn push(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() && std::mem::take(&mut self.cut) && is_rest_of_reply(bytes) {
            self.held.push(ESC);
        }
        self.held.extend_from_slice(bytes);
        self.decode(false);
        if self.held.len() > HELD_BYTES {
            // What it starts with, and what may be the first half of its end.
            self.held.drain(3..self.held.len() - 1);
        }
    }

    /// Nothing more has come within [`InputDecoder::patience`]: what is held is all of it.
    pub fn settle(&mut self) {
        self.cut = self.held == [ESC];
        self.decode(true);
    }

    /// How long to wait for the rest of what is held; `None`: for as long as it takes.
    pub fn patience(&self) -> Option<Duration> {
        match self.held.as_slice() {
            [] => None,
            _ if self.pasted.is_some() => None,
            [ESC] | [ESC, _] | [.., ESC] => Some(ESC_WITHIN),
            _ => Some(REST_WITHIN),
        }
    }

    /// Returns the next event.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the next reply of the terminal, as it was sent.
    pub fn next_reply(&mut self) -> Option<Vec<u8>> {
        self.replies.pop_front()
    }

    fn decode(&mut self, is_all: bool) {
        let held = std::mem::take(&mut self.held);
        let mut rest = held.as_slice();
        loop {
            if let Some(text) = &mut self.pasted {
                let (taken, is_over) = pasted(rest);
                let room = PASTE_BYTES.saturating_sub(text.len());
                text.extend_from_slice(&rest[..taken.min(room)]);
                rest = &rest[taken..];
                if !is_over {
                    break;
                }
                rest = &rest[PASTE_END.len()..];
                let text = self.pasted.take().unwrap_or_default();
                self.events.push_back(Event::Paste(String::from_utf8_lossy(&text).into_owned()));
            }
            let Some((taken, found)) = first(rest, is_all) else { break };
            match found {
                InputToken::Nothing => {}
                InputToken::Event(event) => self.events.push_back(event),
                InputToken::Reply => {
                    self.replies.push_back(rest[..taken].to_vec());
                    if self.replies.len() > REPLIES {
                        self.replies.pop_front();
                    }
                }
                InputToken::Paste => self.pasted = Some(Vec::new()),
            }
            rest = &rest[taken..];
        }
        self.held = rest.to_vec();
    }
}

/// Length of the pasted text in `rest`, and whether its end follows. A possible start of the end is left.
fn pasted(rest: &[u8]) -> (usize, bool) {
    match rest.windows(PASTE_END.len()).position(|bytes| bytes == PASTE_END) {
        Some(end) => (end, true),
        None => {
            let cut = (1..PASTE_END.len()).rev().find(|len| rest.ends_with(&PASTE_END[..*len])).unwrap_or(0);
            (rest.len() - cut, false)
        }
    }
}

/// Decodes the start of the input: its length and what it is. `None`: more is needed, which never is so if
/// `is_all` of it is there.
fn first(text: &[u8], is_all: bool) -> Option<(usize, InputToken)> {
    match *text {
        [] => None,
        [ESC, ..] => escaped(text, is_all),
        [byte, ..] if byte.is_ascii() => Some((1, ascii(byte, KeyModifiers::NONE))),
        _ => character(text, is_all),
    }
}

/// Decodes what an escape begins.
fn escaped(text: &[u8], is_all: bool) -> Option<(usize, InputToken)> {
    // INPUT-2.
    let alone = || Some((1, key(KeyCode::Esc, KeyModifiers::NONE)));
    let wait = || if is_all { alone() } else { None };
    match (text.get(1), text.get(2)) {
        (None, _) => wait(),
        (Some(b'[' | b'O' | b']' | b'P' | b'_' | b'^'), None) => wait(),
        (Some(b'['), Some(b'[')) => match text.get(3) {
            None => wait(),
            // The console of Linux.
            Some(c @ b'A'..=b'E') => Some((4, key(KeyCode::F(c - b'A' + 1), KeyModifiers::NONE))),
            Some(_) => alone(),
        },
        (Some(b'['), Some(b'M')) => match text.get(3..6) {
            Some(&[button, x, y]) => Some((6, mouse(button.wrapping_sub(32), x.into(), y.into(), 33, false))),
            _ if is_all => Some((text.len(), InputToken::Nothing)),
            _ => None,
        },
        (Some(b'['), Some(b' '..=b'~')) => {
            let found = escape::leading(text)?;
            match found.is_whole || is_all {
                true => Some((found.len, csi(&text[..found.len]))),
                false => None,
            }
        }
        (Some(b'O'), Some(c)) => match single_shift(*c) {
            Some(code) => Some((3, key(code, KeyModifiers::NONE))),
            None => alone(),
        },
        // Only what replies begin with: each of these introducers can be a key, too.
        (Some(b']'), Some(b'0'..=b'9'))
        | (Some(b'P'), Some(b' '..=b'?'))
        | (Some(b'_' | b'^'), Some(b' '..=b'~')) => {
            // Replies have no control characters; ctrl-c is obeyed in the middle of one.
            let typed =
                text.iter().position(|byte| *byte < b' ' && !matches!(*byte, 0x07 | 0x18 | 0x1a | ESC));
            let found = escape::leading(text)?;
            match typed.filter(|at| *at < found.len) {
                Some(at) => Some((at, InputToken::Reply)),
                None if found.is_whole => Some((found.len, InputToken::Reply)),
                // An escape at the end is a key.
                None if is_all => Some((found.len - usize::from(text.ends_with(&[ESC])), InputToken::Reply)),
                None => None,
            }
        }
        _ => alone(),
    }
}

fn key(code: KeyCode, modifiers: KeyModifiers) -> InputToken {
    InputToken::Event(Event::Key(KeyEvent::new(code, modifiers)))
}

/// Keys of one byte; of these, control and a letter are one byte, too.
fn ascii(byte: u8, with: KeyModifiers) -> InputToken {
    match byte {
        b'\r' => key(KeyCode::Enter, with),
        b'\t' => key(KeyCode::Tab, with),
        0x7f => key(KeyCode::Backspace, with),
        ESC => key(KeyCode::Esc, with),
        0 => key(KeyCode::Char(' '), with | KeyModifiers::CONTROL),
        0x01..=0x1a => key(KeyCode::Char((byte - 1 + b'a').into()), with | KeyModifiers::CONTROL),
        0x1c..=0x1f => key(KeyCode::Char((byte - 0x1c + b'4').into()), with | KeyModifiers::CONTROL),
        _ => typed(byte.into(), with),
    }
}

fn character(text: &[u8], is_all: bool) -> Option<(usize, InputToken)> {
    let needed = match text[0] {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => return Some((1, InputToken::Nothing)),
    };
    match std::str::from_utf8(&text[..needed.min(text.len())]) {
        Ok(text) => {
            let c = text.chars().next()?;
            Some((needed, if c.is_control() { InputToken::Nothing } else { typed(c, KeyModifiers::NONE) }))
        }
        // The rest of the character may follow.
        Err(error) if error.error_len().is_none() && !is_all => None,
        Err(_) => Some((1, InputToken::Nothing)),
    }
}

/// A character; shift is known by its case only.
fn typed(c: char, modifiers: KeyModifiers) -> InputToken {
    let shift = if c.is_uppercase() { KeyModifiers::SHIFT } else { KeyModifiers::NONE };
    key(KeyCode::Char(c), modifiers | shift)
}

/// Keys behind `ESC O`.
fn single_shift(byte: u8) -> Option<KeyCode> {
    Some(match byte {
        b'P'..=b'S' => KeyCode::F(byte - b'P' + 1),
        _ => cursor_key(byte)?,
    })
}

fn cursor_key(byte: u8) -> Option<KeyCode> {
    Some(match byte {
        b'A' => KeyCode::Up,
        b'B' => KeyCode::Down,
        b'C' => KeyCode::Right,
        b'D' => KeyCode::Left,
        b'F' => KeyCode::End,
        b'H' => KeyCode::Home,
        _ => return None,
    })
}

/// Decodes a control sequence: a key, the mouse, a mark of a pasted text, or a reply.
fn csi(sequence: &[u8]) -> InputToken {
    let (Some((&last, _)), Some(body)) = (sequence.split_last(), sequence.get(2..sequence.len() - 1)) else {
        return InputToken::Nothing;
    };
    let Ok(body) = std::str::from_utf8(body) else { return InputToken::Nothing };
    if let Some(body) = body.strip_prefix('<') {
        let [button, x, y] = numbers(body)[..] else { return InputToken::Nothing };
        let Ok(button) = u8::try_from(button) else { return InputToken::Nothing };
        return mouse(button, x, y, 1, last == b'm');
    }
    if body.contains(|c: char| !c.is_ascii_digit() && c != ';' && c != ':') {
        return InputToken::Reply;
    }
    let (all, kind) = (numbers(body), body.split(';').nth(1).and_then(|part| part.split(':').nth(1)));
    let number = |at: usize| all.get(at).copied().unwrap_or(1);
    let with = modifiers(number(1));
    let key = |code: KeyCode| match kind {
        Some("3") => InputToken::Nothing,
        Some("2") => InputToken::Event(Event::Key(KeyEvent::new_with_kind(code, with, KeyEventKind::Repeat))),
        _ => key(code, with),
    };
    match last {
        // The position of the cursor looks like F3 with modifiers.
        b'R' if all.len() == 2 && (all[0] != 1 || !(2..=16).contains(&all[1])) => InputToken::Reply,
        b'P'..=b'S' if all.len() <= 2 => key(KeyCode::F(last - b'P' + 1)),
        b'Z' => key(KeyCode::BackTab),
        b'E' => key(KeyCode::KeypadBegin),
        b'I' => InputToken::Event(Event::FocusGained),
        b'O' => InputToken::Event(Event::FocusLost),
        b'M' if all.len() == 3 => {
            mouse(u8::try_from(all[0]).unwrap_or_default().wrapping_sub(32), all[1], all[2], 1, false)
        }
        b'u' => coded(number(0), with),
        b'~' => match number(0) {
            PASTE_NUMBER => InputToken::Paste,
            // The end of a pasted text whose start is lost.
            201 => InputToken::Nothing,
            27 => coded(number(2), with),
            1 | 7 => key(KeyCode::Home),
            2 => key(KeyCode::Insert),
            3 => key(KeyCode::Delete),
            4 | 8 => key(KeyCode::End),
            5 => key(KeyCode::PageUp),
            6 => key(KeyCode::PageDown),
            n @ 11..=15 => key(KeyCode::F(n as u8 - 10)),
            n @ 17..=21 => key(KeyCode::F(n as u8 - 11)),
            n @ 23..=24 => key(KeyCode::F(n as u8 - 12)),
            _ => InputToken::Nothing,
        },
        _ => cursor_key(last).map_or(InputToken::Reply, key),
    }
}

/// A key by the number of its character; those of private use stand for keys without a meaning here.
fn coded(number: u32, with: KeyModifiers) -> InputToken {
    match (u8::try_from(number), char::from_u32(number)) {
        (Ok(byte), _) if byte.is_ascii() => ascii(byte, with),
        (_, Some(c)) if !c.is_control() && !('\u{e000}'..='\u{f8ff}').contains(&c) => typed(c, with),
        _ => InputToken::Nothing,
    }
}

/// The numbers of a control sequence; one that is left out is 1.
fn numbers(body: &str) -> Vec<u32> {
    let first = |part: &str| part.split(':').next().and_then(|number| number.parse().ok()).unwrap_or(1);
    if body.is_empty() { Vec::new() } else { body.split(';').map(first).collect() }
}

fn modifiers(number: u32) -> KeyModifiers {
    let bits = number.saturating_sub(1);
    let all = [
        KeyModifiers::SHIFT,
        KeyModifiers::ALT,
        KeyModifiers::CONTROL,
        KeyModifiers::SUPER,
        KeyModifiers::HYPER,
        KeyModifiers::META,
    ];
    let set = all.into_iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1);
    set.fold(KeyModifiers::NONE, |with, (_, modifier)| with | modifier)
}

/// A report of the mouse; `origin` is the number of the first column and row.
fn mouse(button: u8, x: u32, y: u32, origin: u32, is_released: bool) -> InputToken {
    let moved = button & 0x20 != 0;
    let kind = match ((button & 0x3) | ((button & 0xc0) >> 4), moved) {
        (3, false) => MouseEventKind::Up(MouseButton::Left),
        (3.., true) => MouseEventKind::Moved,
        (4, false) => MouseEventKind::ScrollUp,
        (5, false) => MouseEventKind::ScrollDown,
        (6, false) => MouseEventKind::ScrollLeft,
        (7, false) => MouseEventKind::ScrollRight,
        (number @ 0..=2, _) => {
            let button = [MouseButton::Left, MouseButton::Middle, MouseButton::Right][usize::from(number)];
            match (moved, is_released) {
                (true, _) => MouseEventKind::Drag(button),
                (false, true) => MouseEventKind::Up(button),
                (false, false) => MouseEventKind::Down(button),
            }
        }
        (_, false) => return InputToken::Nothing,
    };
    let place = |number: u32| u16::try_from(number.saturating_sub(origin)).unwrap_or(u16::MAX);
    let with = modifiers(u32::from(button >> 2 & 0x7) + 1);
    InputToken::Event(Event::Mouse(MouseEvent { kind, column: place(x), row: place(y), modifiers: with }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn k(code: KeyCode) -> Event {
        with(code, KeyModifiers::NONE)
    }

    fn with(code: KeyCode, modifiers: KeyModifiers) -> Event {
        Event::Key(KeyEvent::new(code, modifiers))
    }

    fn c(key: char) -> Event {
        k(KeyCode::Char(key))
    }

    fn events(decoder: &mut InputDecoder) -> Vec<Event> {
        std::iter::from_fn(|| decoder.next_event()).collect()
    }

    /// The events of reads, with a pause behind each.
    fn read(reads: &[&[u8]]) -> Vec<Event> {
        let mut decoder = InputDecoder::default();
        for bytes in reads {
            decoder.push(bytes);
        }
        decoder.settle();
        assert!(decoder.held.is_empty() || decoder.pasted.is_some());
        events(&mut decoder)
    }

    #[test]
    fn decoder_knows_the_keys_of_terminals() {
        use KeyModifiers as M;
        for (bytes, event) in [
            ("q", c('q')),
            ("Q", with(KeyCode::Char('Q'), M::SHIFT)),
            ("é", c('é')),
            ("漢", c('漢')),
            ("\r", k(KeyCode::Enter)),
            ("\t", k(KeyCode::Tab)),
            ("\x7f", k(KeyCode::Backspace)),
            ("\x1b", k(KeyCode::Esc)),
            ("\x03", with(KeyCode::Char('c'), M::CONTROL)),
            ("\x1a", with(KeyCode::Char('z'), M::CONTROL)),
            ("\0", with(KeyCode::Char(' '), M::CONTROL)),
            ("\x1b[A", k(KeyCode::Up)),
            ("\x1bOB", k(KeyCode::Down)),
            ("\x1b[1;5C", with(KeyCode::Right, M::CONTROL)),
            ("\x1b[1;3D", with(KeyCode::Left, M::ALT)),
            ("\x1b[H", k(KeyCode::Home)),
            ("\x1b[4~", k(KeyCode::End)),
            ("\x1b[5~", k(KeyCode::PageUp)),
            ("\x1b[6;2~", with(KeyCode::PageDown, M::SHIFT)),
            ("\x1b[3~", k(KeyCode::Delete)),
            ("\x1b[Z", k(KeyCode::BackTab)),
            ("\x1bOP", k(KeyCode::F(1))),
            ("\x1b[[B", k(KeyCode::F(2))),
            ("\x1b[1;2R", with(KeyCode::F(3), M::SHIFT)),
            ("\x1b[15~", k(KeyCode::F(5))),
            ("\x1b[17~", k(KeyCode::F(6))),
            ("\x1b[24~", k(KeyCode::F(12))),
            ("\x1b[113;5u", with(KeyCode::Char('q'), M::CONTROL)),
            ("\x1b[27;5;113~", with(KeyCode::Char('q'), M::CONTROL)),
            ("\x1b[I", Event::FocusGained),
            ("\x1b[200~a\nb\x1b[201~", Event::Paste("a\nb".into())),
        ] {
            assert_eq!(read(&[bytes.as_bytes()]), std::slice::from_ref(&event), "{bytes:?}");
            let (mut decoder, bytes) = (InputDecoder::default(), bytes.as_bytes());
            bytes.iter().for_each(|byte| decoder.push(&[*byte]));
            decoder.settle();
            assert_eq!(events(&mut decoder), [event], "{bytes:?}, one by one");
        }
    }

    #[test]
    fn decoder_knows_the_mouse() {
        let at =
            |kind, column, row| Event::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE });
        for (bytes, kind) in [
            ("\x1b[<0;3;5M", MouseEventKind::Down(MouseButton::Left)),
            ("\x1b[<2;3;5m", MouseEventKind::Up(MouseButton::Right)),
            ("\x1b[<32;3;5M", MouseEventKind::Drag(MouseButton::Left)),
            ("\x1b[<64;3;5M", MouseEventKind::ScrollUp),
            ("\x1b[<65;3;5M", MouseEventKind::ScrollDown),
            ("\x1b[<35;3;5M", MouseEventKind::Moved),
            ("\x1b[M #%", MouseEventKind::Down(MouseButton::Left)),
            ("\x1b[32;3;5M", MouseEventKind::Down(MouseButton::Left)),
        ] {
            assert_eq!(read(&[bytes.as_bytes()]), [at(kind, 2, 4)], "{bytes:?}");
        }
    }

    #[test]
    fn input_1_replies_are_no_keys_wherever_they_are_cut() {
        for reply in [
            "\x1b]11;rgb:1a1a/1b1b/2626\x1b\\",
            "\x1b]11;rgb:fafa/fafa/fafa\x07",
            "\x1b]4;1;rgb:1/2/3\x07",
            "\x1b]52;c;cQ==\x1b\\",
            "\x1b[?62;4;22c",
            "\x1b[>41;354;0c",
            "\x1b[?2026;2$y",
            "\x1b[24;80R",
            "\x1b[0n",
            "\x1b[8;24;80t",
            "\x1b[?1u",
            "\x1bP>|xterm(390)\x1b\\",
            "\x1bP1$r0m\x1b\\",
            "\x1bP1+r544e=787465726d\x1b\\",
            "\x1b_Gi=1;OK\x1b\\",
        ] {
            let bytes = reply.as_bytes();
            for cut in 0..bytes.len() {
                let whole = [&bytes[cut..], b"q"].concat();
                assert_eq!(read(&[&bytes[..cut], &whole]), [c('q')], "{reply:?} cut at {cut}");
            }
            let mut decoder = InputDecoder::default();
            decoder.push(bytes);
            assert_eq!(decoder.next_reply().as_deref(), Some(bytes));
            // The escape has waited without success, and was a key.
            decoder.push(b"\x1b");
            decoder.settle();
            decoder.push(&bytes[1..]);
            assert_eq!(events(&mut decoder), [k(KeyCode::Esc)], "{reply:?}");
        }
        let long = [&b"\x1b]52;c;"[..], &vec![b'q'; 100_000], b"\x1b\\x"].concat();
        let parts: Vec<&[u8]> = long.chunks(1000).collect();
        assert_eq!(read(&parts), [c('x')]);
        // One without its end does not take ctrl-c away.
        let interrupt = with(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(read(&[b"\x1b]11;rgb:12", b"\x03q"]), [interrupt, c('q')]);
        assert_eq!(read(&[b"\x1b]11;rgb:12", b"\x1b"]), [k(KeyCode::Esc)]);
    }

    #[test]
    fn input_2_escape_and_a_key_in_one_read_are_two_keys() {
        let esc = || k(KeyCode::Esc);
        for (bytes, key) in [
            ("\x1bq", c('q')),
            ("\x1b\r", k(KeyCode::Enter)),
            ("\x1b\x1b", esc()),
            ("\x1b\x1b[A", k(KeyCode::Up)),
            ("\x1bé", c('é')),
            ("\x1b[", c('[')),
            ("\x1b]", c(']')),
            ("\x1bX", with(KeyCode::Char('X'), KeyModifiers::SHIFT)),
            ("\x1bP", with(KeyCode::Char('P'), KeyModifiers::SHIFT)),
            ("\x1bO", with(KeyCode::Char('O'), KeyModifiers::SHIFT)),
        ] {
            assert_eq!(read(&[bytes.as_bytes()]), [esc(), key], "{bytes:?}");
        }
        assert_eq!(read(&[b"\x1b]j"]), [esc(), c(']'), c('j')]);
    }

    #[test]
    fn input_3_pasted_text_is_no_key() {
        let (mut decoder, text) = (InputDecoder::default(), "q\x1b[A\x03x".repeat(1000));
        for part in format!("\x1b[200~{text}\x1b[201~y").as_bytes().chunks(7) {
            assert!(decoder.pasted.is_none() || decoder.patience().is_none());
            decoder.push(part);
        }
        assert_eq!(events(&mut decoder), [Event::Paste(text), c('y')]);
        decoder.push(b"\x1b[200~");
        (0..3).for_each(|_| decoder.push(&vec![b'x'; PASTE_BYTES / 2]));
        decoder.push(b"\x1b[201~");
        let [Event::Paste(text)] = &events(&mut decoder)[..] else { panic!("no paste") };
        assert_eq!(text.len(), PASTE_BYTES);
    }

    proptest! {
        #[test]
        fn input_4_any_bytes_are_taken_and_little_is_held(reads in prop::collection::vec(prop::collection::vec(
            prop_oneof![any::<u8>(), prop::sample::select(b"\x1b\x1b[]PO_^<;?0129MmRu~\\\x07".to_vec())], 0..30), 0..30),
        ) {
            let mut decoder = InputDecoder::default();
            for bytes in reads {
                decoder.push(&bytes);
                prop_assert!(decoder.held.len() <= HELD_BYTES && decoder.replies.len() <= REPLIES);
                prop_assert_eq!(decoder.patience().is_none(), decoder.held.is_empty() || decoder.pasted.is_some());
            }
            decoder.settle();
            prop_assert!(decoder.held.is_empty() || decoder.pasted.is_some());
        }
    }
}
