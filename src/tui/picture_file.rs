//! Pictures that were logged, from their files to pixels: PNG, and the first frame of GIF. Pure.

use rankdeck_core::model::Picture;
use rankdeck_proto::media::{self, PICTURE_PIXELS, PictureFormat};
use std::sync::Arc;

/// Most codes of a GIF: twelve bits.
const CODES: usize = 4096;

/// The pixels of a picture, or why there are none.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodedPicture {
    /// Number of the picture.
    pub number: u64,
    pub sides: (u32, u32),
    /// Red, green and blue, row by row.
    pub pixels: Result<Arc<Vec<[u8; 3]>>, String>,
}

/// Reads a picture's file.
pub fn decode(picture: &Picture) -> DecodedPicture {
    let read = media::decoded(&picture.data).and_then(|(head, file)| match head.format {
        PictureFormat::Png => png(&file),
        PictureFormat::Gif => gif(&file).ok_or_else(|| "its first frame cannot be read".into()),
    });
    let (sides, pixels) = match read {
        Ok((sides, pixels)) => (sides, Ok(Arc::new(pixels))),
        Err(why) => ((picture.head.width, picture.head.height), Err(why)),
    };
    DecodedPicture { number: picture.number, sides, pixels }
}

type Pixels = ((u32, u32), Vec<[u8; 3]>);

/// What is transparent is white, as on paper.
fn png(file: &[u8]) -> Result<Pixels, String> {
    let picture = tiny_skia::Pixmap::decode_png(file).map_err(|error| error.to_string())?;
    let on_white = |pixel: &tiny_skia::PremultipliedColorU8| {
        let rest = 255 - pixel.alpha();
        [pixel.red(), pixel.green(), pixel.blue()].map(|part| part.saturating_add(rest))
    };
    Ok(((picture.width(), picture.height()), picture.pixels().iter().map(on_white).collect()))
}

/// The parts of a GIF, one after the other.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn short(&mut self) -> Option<usize> {
        self.take(2)?.first_chunk::<2>().map(|two| u16::from_le_bytes(*two).into())
    }

    /// The colours of a table of this size.
    fn table(&mut self, flags: u8) -> Option<Vec<[u8; 3]>> {
        let bytes = self.take(3 * (2 << (flags & 7)))?;
        Some(bytes.chunks_exact(3).map(|rgb| [rgb[0], rgb[1], rgb[2]]).collect())
    }

    /// Blocks up to the empty one.
    fn blocks(&mut self) -> Option<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            match self.byte()? {
                0 => return Some(all),
                count => all.extend(self.take(count.into())?),
            }
        }
    }
}

/// The first frame of a GIF (the GIF89a specification).
fn gif(file: &[u8]) -> Option<Pixels> {
    let mut bytes = Bytes(file.get(6..)?);
    let (wide, high) = (bytes.short()?, bytes.short()?);
    let flags = bytes.byte()?;
    let background = usize::from(bytes.byte()?);
    bytes.byte()?;
    let common = if flags & 0x80 != 0 { bytes.table(flags)? } else { Vec::new() };
    let mut clear = None;
    loop {
        match bytes.byte()? {
            0x21 => {
                let label = bytes.byte()?;
                let block = bytes.blocks()?;
                if label == 0xf9 && block.first().is_some_and(|flags| flags & 1 == 1) {
                    clear = block.get(3).copied();
                }
            }
            0x2c => break,
            _ => return None,
        }
    }
    let (left, top, width, height) = (bytes.short()?, bytes.short()?, bytes.short()?, bytes.short()?);
    if (width * height).max(wide * high) as u64 > PICTURE_PIXELS {
        return None;
    }
    let flags = bytes.byte()?;
    let own = if flags & 0x80 != 0 { bytes.table(flags)? } else { common.clone() };
    let least = bytes.byte()?;
    let indices = unpacked(least, &bytes.blocks()?, width * height)?;
    let empty = common.get(background).copied().unwrap_or([255; 3]);
    let mut pixels = vec![empty; wide * high];
    for (row, line) in rows(height, flags & 0x40 != 0).zip(indices.chunks(width.max(1))) {
        for (column, index) in line.iter().enumerate().filter(|(_, index)| Some(**index) != clear) {
            let (x, y) = (left + column, top + row);
            if x < wide && y < high {
                pixels[y * wide + x] = own.get(usize::from(*index)).copied().unwrap_or_default();
            }
        }
    }
    Some(((wide as u32, high as u32), pixels))
}

/// The order in which rows stand in the file.
fn rows(height: usize, interlaced: bool) -> Box<dyn Iterator<Item = usize>> {
    if !interlaced {
        return Box::new(0..height);
    }
    let passes = [(0, 8), (4, 8), (2, 4), (1, 2)];
    Box::new(passes.into_iter().flat_map(move |(from, by)| (from..height).step_by(by)))
}

/// The indices of so many pixels, by the algorithm of Lempel, Ziv and Welch. A stream that ends early leaves
/// 0.
fn unpacked(least: u8, packed: &[u8], count: usize) -> Option<Vec<u8>> {
    let least = usize::from(least);
    if !(1..=8).contains(&least) {
        return None;
    }
    let (clear, end) = (1 << least, (1 << least) + 1);
    // Each code is a code before it and a byte.
    let mut table: Vec<(usize, u8)> = Vec::with_capacity(CODES);
    let mut out: Vec<u8> = Vec::with_capacity(count);
    let (mut word, mut bits, mut size) = (0_u32, 0, least + 1);
    let mut before: Option<usize> = None;
    let fresh = |table: &mut Vec<(usize, u8)>| {
        table.clear();
        table.extend((0..clear + 2).map(|code| (usize::MAX, code as u8)));
    };
    fresh(&mut table);
    let mut turned = Vec::with_capacity(CODES);
    'bytes: for byte in packed {
        word |= u32::from(*byte) << bits;
        bits += 8;
        while bits >= size {
            let code = (word & ((1 << size) - 1)) as usize;
            (word, bits) = (word >> size, bits - size);
            if code == end || out.len() >= count {
                break 'bytes;
            }
            if code == clear {
                fresh(&mut table);
                (size, before) = (least + 1, None);
                continue;
            }
            // A code that is about to be made repeats the first byte of the one before.
            let (mut at, mut extra) = (code, false);
            if code >= table.len() {
                (at, extra) = (before.filter(|_| code == table.len())?, true);
            }
            turned.clear();
            while at != usize::MAX {
                let (next, byte) = *table.get(at)?;
                turned.push(byte);
                at = next;
            }
            let first = *turned.last()?;
            out.extend(turned.iter().rev());
            out.extend(extra.then_some(first));
            if let Some(before) = before
                && table.len() < CODES
            {
                table.push((before, first));
                if table.len() == 1 << size && size < 12 {
                    size += 1;
                }
            }
            before = Some(code);
        }
    }
    out.resize(count, 0);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_core::series::Place;
    use rankdeck_proto::media::{PictureHead, encoded};

    fn picture(file: &[u8]) -> Picture {
        let head = PictureHead::of(file).unwrap();
        Picture { number: 1, place: Place::default(), head, data: encoded(file) }
    }

    /// 10 x 10 pixels of three colours: the sample of "What's In A GIF" (M. Flickinger).
    const SAMPLE: &[u8] = &[
        0x47, 0x49, 0x46, 0x38, 0x39, 0x61, 0x0a, 0x00, 0x0a, 0x00, 0x91, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff,
        0x00, 0x00, 0x00, 0x00, 0xff, 0x00, 0x00, 0x00, 0x21, 0xf9, 0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x2c,
        0x00, 0x00, 0x00, 0x00, 0x0a, 0x00, 0x0a, 0x00, 0x00, 0x02, 0x16, 0x8c, 0x2d, 0x99, 0x87, 0x2a, 0x1c,
        0xdc, 0x33, 0xa0, 0x02, 0x75, 0xec, 0x95, 0xfa, 0xa8, 0xde, 0x60, 0x8c, 0x04, 0x91, 0x4c, 0x01, 0x00,
        0x3b,
    ];

    #[test]
    fn the_first_frame_of_a_gif_is_read() {
        let read = decode(&picture(SAMPLE));
        let pixels = read.pixels.unwrap();
        let (red, blue, white) = ([255, 0, 0], [0, 0, 255], [255; 3]);
        let row = |y: usize| pixels[y * 10..(y + 1) * 10].to_vec();
        assert_eq!(row(0), [vec![red; 5], vec![blue; 5]].concat());
        assert_eq!(row(3), [vec![red; 3], vec![white; 4], vec![blue; 3]].concat());
        assert_eq!(row(9), [vec![blue; 5], vec![red; 5]].concat());
    }

    #[test]
    fn what_is_transparent_in_a_png_is_white() {
        let mut map = tiny_skia::Pixmap::new(2, 1).unwrap();
        map.pixels_mut()[0] = tiny_skia::ColorU8::from_rgba(10, 20, 30, 255).premultiply();
        let read = decode(&picture(&map.encode_png().unwrap()));
        assert_eq!((read.sides, &**read.pixels.as_ref().unwrap()), ((2, 1), &vec![[10, 20, 30], [255; 3]]));
    }

    #[test]
    fn broken_files_are_survived_and_told() {
        let mut map = tiny_skia::Pixmap::new(9, 9).unwrap();
        map.fill(tiny_skia::Color::WHITE);
        let png = map.encode_png().unwrap();
        for file in [SAMPLE, &png] {
            for cut in 24..file.len() {
                for value in [0, 0x7f, 0xff] {
                    let mut bytes = file[..cut].to_vec();
                    let last = bytes.len() - 1;
                    bytes[last] = value;
                    let _ = PictureHead::of(&bytes).map(|_| decode(&picture(&bytes)));
                }
            }
        }
        assert!(decode(&picture(&png[..40])).pixels.is_err());
        assert!(decode(&picture(&SAMPLE[..30])).pixels.unwrap_err().contains("cannot be read"));
    }
}
