//! Finds escape sequences of ECMA-48 in text of programs and in what terminals send.

/// The escape character.
pub const ESC: u8 = 0x1b;
/// The bell, which ends an operating system command as the string terminator does.
const BEL: u8 = 0x07;
/// Both cancel a sequence.
const CAN: u8 = 0x18;
const SUB: u8 = 0x1a;

/// The forms of escape sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EscapeForm {
    /// `ESC [`: parameters and a final byte.
    Csi,
    /// `ESC ]`: operating system command.
    Osc,
    /// `ESC P`: device control string.
    Dcs,
    /// `ESC _`: application program command.
    Apc,
    /// `ESC ^`: privacy message.
    Pm,
    /// `ESC X`: start of string.
    Sos,
    /// One more byte, or intermediate bytes and a final one (nF), such as `ESC ( B`.
    Short,
}

/// An escape sequence at the start of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Escape {
    /// Its form.
    pub form: EscapeForm,
    /// Its bytes so far; the text can be cut there.
    pub len: usize,
    /// Whether it has ended; if not, it continues in the text that follows.
    pub is_whole: bool,
}

/// Returns the escape sequence at the start of UTF-8 text; `None` if it starts with something else.
///
/// The introducers of 8-bit terminals count as well: U+009B is `ESC [`. A sequence with a byte that cannot
/// be part of it ends before that byte.
pub fn leading(text: &[u8]) -> Option<Escape> {
    use EscapeForm::{Apc, Csi, Dcs, Osc, Pm, Short, Sos};
    let (form, start) = match text {
        [ESC, b'[', ..] | [0xc2, 0x9b, ..] => (Csi, 2),
        [ESC, b']', ..] | [0xc2, 0x9d, ..] => (Osc, 2),
        [ESC, b'P', ..] | [0xc2, 0x90, ..] => (Dcs, 2),
        [ESC, b'_', ..] | [0xc2, 0x9f, ..] => (Apc, 2),
        [ESC, b'^', ..] | [0xc2, 0x9e, ..] => (Pm, 2),
        [ESC, b'X', ..] | [0xc2, 0x98, ..] => (Sos, 2),
        [ESC, ..] => (Short, 1),
        _ => return None,
    };
    let body = &text[start..];
    let (len, is_whole) = match form {
        Csi => until_final(body, 0x20..=0x3f, 0x40..=0x7e),
        Short => until_final(body, 0x20..=0x2f, 0x30..=0x7e),
        Osc | Dcs | Apc | Pm | Sos => string(body, form == Osc),
    };
    Some(Escape { form, len: start + len, is_whole })
}

/// Length of parameter and intermediate bytes with the final byte, and whether they have ended.
fn until_final(
    body: &[u8],
    before: std::ops::RangeInclusive<u8>,
    last: std::ops::RangeInclusive<u8>,
) -> (usize, bool) {
    let len = body.iter().take_while(|byte| before.contains(byte)).count();
    match body.get(len) {
        Some(byte) if last.contains(byte) => (len + 1, true),
        end => (len, end.is_some()),
    }
}

/// Length of a control string with its terminator, and whether it has ended.
fn string(body: &[u8], bell_ends: bool) -> (usize, bool) {
    let mut at = 0;
    while let Some(byte) = body.get(at) {
        match (byte, body.get(at + 1)) {
            (&ESC, Some(b'\\')) | (0xc2, Some(0x9c)) => return (at + 2, true),
            (&ESC, Some(_)) => return (at, true),
            (&ESC, None) => break,
            (&(CAN | SUB), _) => return (at + 1, true),
            (&BEL, _) if bell_ends => return (at + 1, true),
            _ => at += 1,
        }
    }
    (body.len(), false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_finds_all_forms_and_their_ends() {
        use EscapeForm::{Apc, Csi, Dcs, Osc, Pm, Short, Sos};
        let found =
            |text: &str| leading(text.as_bytes()).map(|found| (found.form, found.len, found.is_whole));
        for (text, form) in [
            ("\x1b[1;31m", Csi),
            ("\u{9b}?25l", Csi),
            ("\x1b]0;title\x07", Osc),
            ("\x1b]0;title\x1b\\", Osc),
            ("\u{9d}0;title\u{9c}", Osc),
            ("\x1bP1$r0m\x1b\\", Dcs),
            ("\x1bPbell \x07 stays\x1b\\", Dcs),
            ("\u{90}q\u{9c}", Dcs),
            ("\x1b_Gi=1;OK\x1b\\", Apc),
            ("\u{9f}x\x1b\\", Apc),
            ("\x1b^private\x1b\\", Pm),
            ("\u{9e}x\x18", Pm),
            ("\x1bXanything\nat all\x1b\\", Sos),
            ("\u{98}x\x1a", Sos),
            ("\x1b(B", Short),
            ("\x1b%/G", Short),
            ("\x1b7", Short),
            ("\x1bM", Short),
            ("\x1bc", Short),
        ] {
            assert_eq!(found(&format!("{text}tail")), Some((form, text.len(), true)), "{text:?}");
            for cut in 1..text.len() {
                let part = leading(&text.as_bytes()[..cut]);
                assert!(part.is_none_or(|part| part.len == cut && !part.is_whole), "{text:?} at {cut}");
            }
        }
        assert_eq!([found(""), found("text"), found("é\x1b[m")], [None; 3]);
    }

    #[test]
    fn leading_ends_before_a_byte_of_something_else() {
        let len = |text: &str| leading(text.as_bytes()).map(|found| (found.len, found.is_whole));
        assert_eq!(len("\x1b\x1b[m"), Some((1, true)));
        assert_eq!(len("\x1b[3\nm"), Some((3, true)));
        assert_eq!(len("\x1b[3é"), Some((3, true)));
        assert_eq!(len("\x1b(é"), Some((2, true)));
        assert_eq!(len("\x1b]0;a\x1b[m"), Some((5, true)));
    }
}
