//! PNG: 8 bits of red, green and blue, not compressed.

/// Most bytes of a block that is stored as it is.
const BLOCK: usize = 0xffff;

/// A picture as a file.
pub fn png(pixels: &[[u8; 3]], width: u32, height: u32) -> Vec<u8> {
    // Each row begins with its filter: none.
    let rows: Vec<u8> = pixels
        .chunks(width.max(1) as usize)
        .take(height as usize)
        .flat_map(|row| std::iter::once(0).chain(row.as_flattened().iter().copied()))
        .collect();
    let mut header = [width.to_be_bytes(), height.to_be_bytes()].concat();
    header.extend([8, 2, 0, 0, 0]);
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    chunk(&mut file, b"IHDR", &header);
    chunk(&mut file, b"IDAT", &stored(&rows));
    chunk(&mut file, b"IEND", &[]);
    file
}

/// A zlib stream whose blocks are stored.
fn stored(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0x78, 0x01];
    let mut blocks = bytes.chunks(BLOCK).peekable();
    while let Some(block) = blocks.next() {
        out.push(u8::from(blocks.peek().is_none()));
        let len = block.len() as u16;
        out.extend([len.to_le_bytes(), (!len).to_le_bytes()].concat());
        out.extend(block);
    }
    out.extend(adler(bytes).to_be_bytes());
    out
}

fn adler(bytes: &[u8]) -> u32 {
    const MOST: u32 = 65_521;
    let (low, high) = bytes.iter().fold((1, 0), |(low, high), byte| {
        let low = (low + u32::from(*byte)) % MOST;
        (low, (high + low) % MOST)
    });
    high << 16 | low
}

fn crc(bytes: impl Iterator<Item = u8>) -> u32 {
    !bytes.fold(u32::MAX, |crc, byte| {
        (0..8).fold(
            crc ^ u32::from(byte),
            |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 },
        )
    })
}

fn chunk(file: &mut Vec<u8>, name: &[u8; 4], data: &[u8]) {
    file.extend((data.len() as u32).to_be_bytes());
    file.extend(name);
    file.extend(data);
    file.extend(crc(name.iter().chain(data).copied()).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_standards() {
        assert_eq!(crc(b"123456789".iter().copied()), 0xcbf4_3926);
        assert_eq!(adler(b"Wikipedia"), 0x11e6_0398);
        assert_eq!(crc(b"IEND".iter().copied()), 0xae42_6082);
    }

    #[test]
    fn a_large_picture_has_several_blocks() {
        let file = png(&vec![[1, 2, 3]; 300 * 300], 300, 300);
        let (rows, blocks) = (300 * 901, 5);
        assert_eq!(file.len(), 8 + 12 + 13 + 12 + 12 + 2 + rows + 5 * blocks + 4);
    }
}
