//! Lines of the event socket, cut from what comes.

use rankdeck_proto::media::PICTURE_BYTES;

/// Longest line, bytes.
const LINE_BYTES: usize = 64 << 10;
/// Longest line with a picture in base64.
const PICTURE_LINE: usize = PICTURE_BYTES.div_ceil(3) * 4 + (4 << 10);

/// Cuts bytes into lines of bounded length.
#[derive(Debug)]
pub struct Lines {
    /// Longest line, bytes.
    most: usize,
    pending: Vec<u8>,
    skipping: bool,
}

impl Default for Lines {
    fn default() -> Lines {
        Lines { most: LINE_BYTES, pending: Vec::new(), skipping: false }
    }
}

impl Lines {
    /// Lines that may hold pictures follow.
    pub fn take_pictures(&mut self) {
        self.most = PICTURE_LINE;
    }

    /// Longest line, bytes.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Feeds bytes; every finished line comes out, `Err` for one that was too long.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Result<Vec<u8>, ()>> {
        let mut out = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            if !self.skipping {
                self.pending.extend_from_slice(text);
            }
            if self.pending.len() > self.most {
                self.pending = Vec::new();
                self.skipping = true;
            }
            if ends {
                if std::mem::take(&mut self.skipping) {
                    out.push(Err(()));
                } else if !self.pending.is_empty() {
                    out.push(Ok(std::mem::take(&mut self.pending)));
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_1_lines_are_bounded_whatever_the_cut() {
        let mut stream = b"{\"a\":1}\n\n".to_vec();
        stream.extend(vec![b'x'; LINE_BYTES + 1]);
        stream.extend(b"\nlast\nunfinished");
        for step in [1, 7, 4096, stream.len()] {
            let mut lines = Lines::default();
            let seen: Vec<_> = stream.chunks(step).flat_map(|part| lines.push(part)).collect();
            assert_eq!(
                seen,
                [Ok(b"{\"a\":1}".to_vec()), Err(()), Ok(b"last".to_vec())],
                "cut every {step} bytes"
            );
            assert!(lines.pending.capacity() <= 2 * LINE_BYTES);
        }
        let mut lines = Lines::default();
        lines.take_pictures();
        let long =
            [vec![b'x'; 2 * LINE_BYTES], vec![b'\n'], vec![b'x'; PICTURE_LINE + 1], vec![b'\n']].concat();
        let seen: Vec<_> = long.chunks(4096).flat_map(|part| lines.push(part)).collect();
        assert_eq!(seen, [Ok(vec![b'x'; 2 * LINE_BYTES]), Err(())]);
    }
}
