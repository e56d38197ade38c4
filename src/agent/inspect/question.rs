//! Which name a program asks a name server for.
//!
//! Owner: nobody keeps state. The resolver of the C library keeps its query (RFC 1035, section 4.1) on the
//! stack of the thread that waits, whatever language the program is written in.

use super::memory;
use super::syscall::Call;

/// How much of the stack is looked at, from the waiting call upwards.
const STACK: usize = 64 << 10;
const HEAD: usize = 12;
const LONGEST: usize = 253;

/// The name that this call waits for an answer about; empty when there is none on the stack.
pub fn of(pid: u32, call: &Call) -> String {
    memory::read(pid, call.sp, STACK).ok().and_then(|stack| asked(&stack)).unwrap_or_default()
}

/// The name in the first query of these bytes.
fn asked(stack: &[u8]) -> Option<String> {
    stack.windows(HEAD).enumerate().filter(|(_, head)| is_query(head)).find_map(|(at, _)| {
        let mut rest = stack.get(at + HEAD..)?;
        let mut name = String::new();
        loop {
            let (length, after) = rest.split_first()?;
            if *length == 0 {
                rest = after;
                break;
            }
            let label = after.get(..usize::from(*length))?;
            let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            if *length > 63 || !label.iter().all(plain) || name.len() + label.len() >= LONGEST {
                return None;
            }
            let dot = if name.is_empty() { "" } else { "." };
            name = format!("{name}{dot}{}", String::from_utf8_lossy(label));
            rest = after.get(label.len()..)?;
        }
        // The class is that of the internet.
        (!name.is_empty() && rest.get(2..4)? == [0, 1]).then_some(name)
    })
}

/// A question for a recursive answer, alone, with or without an additional record.
fn is_query(head: &[u8]) -> bool {
    head[2] == 1 && head[3] & 0b1100_1111 == 0 && head[4..11] == [0, 1, 0, 0, 0, 0, 0] && head[11] <= 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(name: &[u8]) -> Vec<u8> {
        [&[7, 7, 7, 0xab, 0xcd, 1, 0x20, 0, 1, 0, 0, 0, 0, 0, 1][..], name, &[0, 0, 28, 0, 1, 9, 9]].concat()
    }

    #[test]
    fn a_question_is_found_among_other_bytes_and_nothing_else_is_one() {
        let bytes = query(b"\x03sim\x07example\x03org");
        assert_eq!(asked(&bytes).as_deref(), Some("sim.example.org"));
        let twice = [query(b"\x03s\x1bm\x03org"), bytes.clone()].concat();
        assert_eq!(
            asked(&twice).as_deref(),
            Some("sim.example.org"),
            "a name that would drive a terminal is none"
        );
        for cut in 0..bytes.len() - 2 {
            assert_eq!(asked(&bytes[..cut]), None, "{cut}");
        }
        assert_eq!(asked(&query(b"")), None);
        let long: Vec<u8> = (0..5).flat_map(|_| [&[60][..], &[b'a'; 60]].concat()).collect();
        assert_eq!(asked(&query(&long)), None);
        assert_eq!(asked(&vec![0; 4096]), None);
    }
}
