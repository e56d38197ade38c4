//! GIF: frames of 256 colours, packed by LZW.

use rankdeck_tui::play::picture::indexed;
use std::collections::HashMap;
use std::ops::Range;

/// Codes have at most so many bits.
const MOST_BITS: u32 = 12;

/// An animation that is written frame by frame.
pub struct Gif {
    file: Vec<u8>,
    width: u16,
    height: u16,
}

/// Red, green and blue of the terminal's palette from 16 on; the first 16 are not used.
fn colour(index: u8) -> [u8; 3] {
    const STEPS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    match index {
        0..16 => [0; 3],
        16..232 => {
            let index = usize::from(index - 16);
            [STEPS[index / 36], STEPS[index / 6 % 6], STEPS[index % 6]]
        }
        grey => [8 + 10 * (grey - 232); 3],
    }
}

impl Gif {
    /// Without a frame yet; it begins again after its end.
    pub fn new(width: u16, height: u16) -> Gif {
        let mut file = b"GIF89a".to_vec();
        file.extend([width.to_le_bytes(), height.to_le_bytes()].concat());
        // A palette of 256 for all frames.
        file.extend([0xf7, 0, 0]);
        (0..=255).for_each(|index| file.extend(colour(index)));
        file.extend(b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00");
        Gif { file, width, height }
    }

    /// Adds a frame of exactly this animation's size, shown for so many hundredths of a second. Of what was
    /// drawn before, only the rectangle that differs is written.
    pub fn frame(&mut self, pixels: &[[u8; 3]], before: Option<&[[u8; 3]]>, hundredths: u16) {
        let (wide, tall) = (usize::from(self.width), usize::from(self.height));
        let (columns, rows) = changed(pixels, before, wide, tall);
        self.file.extend([0x21, 0xf9, 4, 4]);
        self.file.extend(hundredths.to_le_bytes());
        self.file.extend([0, 0, 0x2c]);
        for number in [columns.start, rows.start, columns.len(), rows.len()] {
            self.file.extend((number as u16).to_le_bytes());
        }
        self.file.extend([0, 8]);
        let pixels = rows.flat_map(|row| pixels[row * wide..(row + 1) * wide][columns.clone()].iter());
        // Neighbours are often equal, and the nearest colour takes its time.
        let mut last = ([0; 3], indexed([0; 3]));
        let indices = pixels.map(|rgb| {
            if last.0 != *rgb {
                last = (*rgb, indexed(*rgb));
            }
            last.1
        });
        for block in packed(indices).chunks(255) {
            self.file.push(block.len() as u8);
            self.file.extend(block);
        }
        self.file.push(0);
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.file.len()
    }

    /// The whole file.
    pub fn finish(mut self) -> Vec<u8> {
        self.file.push(0x3b);
        self.file
    }
}

/// Columns and rows around everything that differs; one pixel where nothing does.
fn changed(
    pixels: &[[u8; 3]],
    before: Option<&[[u8; 3]]>,
    wide: usize,
    tall: usize,
) -> (Range<usize>, Range<usize>) {
    let Some(before) = before.filter(|before| before.len() == pixels.len()) else {
        return (0..wide, 0..tall);
    };
    let row = |row: usize| row * wide..(row + 1) * wide;
    let differs = |at: &usize| pixels[row(*at)] != before[row(*at)];
    let (Some(top), Some(bottom)) = ((0..tall).find(differs), (0..tall).rev().find(differs)) else {
        return (0..1, 0..1);
    };
    let (mut left, mut right) = (wide, 0);
    for at in top..=bottom {
        let pairs = || pixels[row(at)].iter().zip(&before[row(at)]);
        left = pairs().position(|(now, then)| now != then).map_or(left, |x| left.min(x));
        right = pairs().rposition(|(now, then)| now != then).map_or(right, |x| right.max(x));
    }
    (left..right + 1, top..bottom + 1)
}

/// Bits from the lowest on.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    kept: u32,
    count: u32,
}

impl Bits {
    fn push(&mut self, code: u16, bits: u32) {
        self.kept |= u32::from(code) << self.count;
        self.count += bits;
        while self.count >= 8 {
            self.bytes.push(self.kept as u8);
            (self.kept, self.count) = (self.kept >> 8, self.count - 8);
        }
    }
}

/// LZW of bytes, as GIF wants it.
fn packed(values: impl Iterator<Item = u8>) -> Vec<u8> {
    const CLEAR: u16 = 256;
    const END: u16 = 257;
    let mut out = Bits::default();
    let (mut codes, mut next, mut bits) = (HashMap::new(), END + 1, 9);
    out.push(CLEAR, bits);
    let mut prefix: Option<u16> = None;
    for value in values {
        let Some(known) = prefix else {
            prefix = Some(u16::from(value));
            continue;
        };
        if let Some(code) = codes.get(&(known, value)) {
            prefix = Some(*code);
            continue;
        }
        out.push(known, bits);
        if next < 1 << MOST_BITS {
            codes.insert((known, value), next);
            // The reader's table is one entry behind.
            if u32::from(next) == 1 << bits {
                bits += 1;
            }
            next += 1;
        } else {
            out.push(CLEAR, bits);
            codes.clear();
            (next, bits) = (END + 1, 9);
        }
        prefix = Some(u16::from(value));
    }
    if let Some(code) = prefix {
        out.push(code, bits);
    }
    out.push(END, bits);
    out.push(0, 7);
    out.bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LZW as a reader of GIF does it.
    fn unpacked(bytes: &[u8]) -> Vec<u8> {
        let (mut at, mut bits) = (0usize, 9usize);
        let mut code = |bits: usize| {
            let value = (0..bits).fold(0usize, |value, i| {
                let bit = bytes.get((at + i) / 8).map_or(0, |byte| byte >> ((at + i) % 8) & 1);
                value | usize::from(bit) << i
            });
            at += bits;
            value
        };
        let fresh = || -> Vec<Vec<u8>> { (0..258).map(|i| vec![i as u8]).collect() };
        let (mut table, mut before, mut out) = (fresh(), None::<usize>, Vec::new());
        loop {
            match code(bits) {
                256 => (table, before, bits) = (fresh(), None, 9),
                257 => return out,
                now => {
                    if let Some(before) = before {
                        let first = table.get(now).map_or(table[before][0], |entry| entry[0]);
                        let entry = [table[before].as_slice(), &[first]].concat();
                        if table.len() < 4096 {
                            table.push(entry);
                        }
                        if table.len() == 1 << bits && bits < 12 {
                            bits += 1;
                        }
                    }
                    out.extend(&table[now]);
                    before = Some(now);
                }
            }
        }
    }

    #[test]
    fn what_is_packed_comes_back() {
        let mut random = 1u32;
        let noise: Vec<u8> = (0..60_000)
            .map(|_| {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (random >> 24) as u8
            })
            .collect();
        for values in [vec![], vec![7], vec![0; 10_000], noise, (0..=255).cycle().take(5000).collect()] {
            assert_eq!(unpacked(&packed(values.iter().copied())), values, "{}", values.len());
        }
    }

    #[test]
    fn only_what_differs_is_written() {
        let before = vec![[0; 3]; 12];
        let mut now = before.clone();
        assert_eq!(changed(&now, None, 4, 3), (0..4, 0..3));
        assert_eq!(changed(&now, Some(&before), 4, 3), (0..1, 0..1));
        (now[5], now[11]) = ([9; 3], [9; 3]);
        assert_eq!(changed(&now, Some(&before), 4, 3), (1..4, 1..3));
        let mut gif = Gif::new(4, 3);
        gif.frame(&before, None, 5);
        let whole = gif.len();
        gif.frame(&now, Some(&before), 5);
        assert!(gif.len() - whole < 40 && gif.finish().ends_with(&[0, 0x3b]));
    }

    #[test]
    fn colours_are_those_of_the_palette() {
        for rgb in [[0, 0, 0], [255, 255, 255], [95, 135, 175], [8, 8, 8]] {
            assert_eq!(colour(indexed(rgb)), rgb);
        }
    }
}
