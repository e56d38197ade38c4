//! Images on terminals with graphics: encodes them for kitty, iTerm2 and sixel, and draws the logged images
//! of a run, which are sent when the view changes and deleted before something else is drawn there.

use super::terminal::Surface;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rankdeck_kit::draw::scaled;
use rankdeck_kit::theme::indexed;
use rankdeck_tui::DecodedPicture;
use ratatui::layout::Rect;
use std::fmt::Write;
use std::io;
use std::sync::Arc;

/// Maximum base64 length of one kitty sequence.
const CHUNK: usize = 4096;
/// Pixels of a cell if the terminal does not report them.
const CELL: (u16, u16) = (8, 16);
/// Maximum side of a sixel image.
const MAX_SIXEL_SIDE: usize = 1024;
/// Maximum side of a logged image.
const MAX_IMAGE_SIDE: u32 = 1024;

/// A graphics protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Graphics {
    /// kitty, ghostty.
    Kitty,
    /// iTerm2, WezTerm.
    Iterm2,
    /// foot, mlterm, contour, and xterm if enabled.
    Sixel,
}

impl Graphics {
    /// Detects the protocol from the environment; `None`: characters. tmux passes no graphics through.
    pub fn here() -> Option<Graphics> {
        Graphics::of(&|name| std::env::var(name).unwrap_or_default())
    }

    fn of(value: &dyn Fn(&str) -> String) -> Option<Graphics> {
        let set = |name: &str| !value(name).is_empty();
        let (term, program) = (value("TERM"), value("TERM_PROGRAM"));
        let sixel = ["foot", "mlterm", "contour", "yaft"];
        match program.as_str() {
            _ if set("TMUX") || set("STY") || set("ZELLIJ") => None,
            "ghostty" => Some(Graphics::Kitty),
            "iTerm.app" | "WezTerm" => Some(Graphics::Iterm2),
            _ if set("KITTY_WINDOW_ID") || term == "xterm-kitty" => Some(Graphics::Kitty),
            _ if value("LC_TERMINAL") == "iTerm2" => Some(Graphics::Iterm2),
            _ if term.contains("sixel") || sixel.iter().any(|name| term.starts_with(name)) => {
                Some(Graphics::Sixel)
            }
            _ => None,
        }
    }

    /// Encodes an image over the cells of an area. The cursor does not move.
    pub fn draw(self, pixels: &[[u8; 3]], sides: (u32, u32), area: Rect) -> Vec<u8> {
        let mut out = format!("\x1b7\x1b[{};{}H", area.y + 1, area.x + 1);
        // Writing to a String cannot fail.
        let _ = match self {
            Graphics::Kitty => kitty(&mut out, pixels, sides, area),
            Graphics::Iterm2 => {
                let file = STANDARD.encode(png(pixels, sides));
                write!(
                    out,
                    "\x1b]1337;File=inline=1;width={};height={};preserveAspectRatio=0;doNotMoveCursor=1:{file}\x07",
                    area.width, area.height
                )
            }
            Graphics::Sixel => {
                let cell = cell();
                let side =
                    |cells: u16, pixels: u16| (usize::from(cells) * usize::from(pixels)).min(MAX_SIXEL_SIDE);
                let to = (side(area.width, cell.0), side(area.height, cell.1));
                sixel(&mut out, &scaled(pixels, (sides.0 as usize, sides.1 as usize), to), to)
            }
        };
        out.push_str("\x1b8");
        out.into_bytes()
    }

    /// The same, with at most [`MAX_IMAGE_SIDE`] pixels per side.
    fn draw_scaled(self, pixels: &[[u8; 3]], (width, height): (u32, u32), area: Rect) -> Vec<u8> {
        let longest = width.max(height).max(1);
        if longest <= MAX_IMAGE_SIDE {
            return self.draw(pixels, (width, height), area);
        }
        let small =
            |side: u32| (u64::from(side) * u64::from(MAX_IMAGE_SIDE) / u64::from(longest)).max(1) as u32;
        let to = (small(width), small(height));
        let sides = |(w, h): (u32, u32)| (w as usize, h as usize);
        self.draw(&scaled(pixels, sides((width, height)), sides(to)), to, area)
    }

    /// Removes the image. Sixel and iTerm2 images are overwritten by cells.
    pub fn clear(self) -> &'static [u8] {
        match self {
            Graphics::Kitty => b"\x1b_Ga=d,d=A,q=2\x1b\\",
            Graphics::Iterm2 | Graphics::Sixel => b"",
        }
    }
}

/// Returns the pixels of a cell.
fn cell() -> (u16, u16) {
    match crossterm::terminal::window_size() {
        Ok(size) if size.width > 0 && size.height > 0 && size.columns > 0 && size.rows > 0 => {
            (size.width / size.columns, size.height / size.rows)
        }
        _ => CELL,
    }
}

/// Encodes a PNG file; empty if the sides do not match the pixels.
fn png(pixels: &[[u8; 3]], (width, height): (u32, u32)) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::Fast);
    let written =
        encoder.write_header().and_then(|mut writer| writer.write_image_data(pixels.as_flattened()));
    if written.is_err() {
        file.clear();
    }
    file
}

fn kitty(out: &mut String, pixels: &[[u8; 3]], sides: (u32, u32), area: Rect) -> std::fmt::Result {
    let data = STANDARD.encode(pixels.as_flattened());
    let mut rest = data.as_str();
    let mut first = true;
    while first || !rest.is_empty() {
        let (part, after) = rest.split_at(rest.len().min(CHUNK));
        out.push_str("\x1b_G");
        if first {
            write!(
                out,
                "a=T,f=24,s={},v={},c={},r={},i=1,p=1,q=2,C=1,",
                sides.0, sides.1, area.width, area.height
            )?;
        }
        write!(out, "m={};{part}\x1b\\", u8::from(!after.is_empty()))?;
        (rest, first) = (after, false);
    }
    Ok(())
}

/// Encodes bands of six rows, one color after the other.
fn sixel(out: &mut String, pixels: &[[u8; 3]], (width, height): (usize, usize)) -> std::fmt::Result {
    let indices: Vec<u8> = pixels.iter().map(|rgb| indexed(*rgb)).collect();
    write!(out, "\x1bPq\"1;1;{width};{height}")?;
    let mut colors = [None; 256];
    for (index, rgb) in indices.iter().zip(pixels) {
        colors[usize::from(*index)].get_or_insert(*rgb);
    }
    for (index, rgb) in colors.iter().enumerate().filter_map(|(index, rgb)| Some((index, (*rgb)?))) {
        let [red, green, blue] = rgb.map(|part| u32::from(part) * 100 / 255);
        write!(out, "#{index};2;{red};{green};{blue}")?;
    }
    for band in 0..height.div_ceil(6) {
        let rows = &indices[band * 6 * width..((band + 1) * 6 * width).min(indices.len())];
        let mut used: Vec<u8> = rows.to_vec();
        used.sort_unstable();
        used.dedup();
        for color in used {
            write!(out, "#{color}")?;
            let bits = |x: usize| {
                let column = rows.iter().skip(x).step_by(width).enumerate();
                column.filter(|(_, index)| **index == color).map(|(y, _)| 1 << y).sum::<u8>()
            };
            let mut x = 0;
            while x < width {
                let sign = bits(x);
                let same = (x..width).take_while(|at| bits(*at) == sign).count();
                let letter = char::from(63 + sign);
                match same {
                    1..=3 => (0..same).for_each(|_| out.push(letter)),
                    _ => write!(out, "!{same}{letter}")?,
                }
                x += same;
            }
            out.push('$');
        }
        out.push('-');
    }
    out.push_str("\x1b\\");
    Ok(())
}

/// The logged image on the terminal.
#[derive(Debug, Default)]
pub(crate) struct TerminalImages {
    graphics: Option<Graphics>,
    /// Number and area of the image on the terminal.
    drawn: Option<(u64, Rect)>,
}

impl TerminalImages {
    /// For this terminal.
    pub(crate) fn here() -> TerminalImages {
        TerminalImages { graphics: Graphics::here(), drawn: None }
    }

    /// Whether the terminal draws images.
    pub(crate) fn is_supported(&self) -> bool {
        self.graphics.is_some()
    }

    /// Prepares a frame with this image: another one is deleted. Most terminals delete an image only with the
    /// cells below it, which are then redrawn.
    pub(crate) fn before(
        &mut self,
        image: Option<(&DecodedPicture, Rect)>,
        surface: &mut dyn Surface,
    ) -> io::Result<()> {
        let image = image.map(|(decoded, area)| (decoded.number, area));
        if self.drawn.is_some() && self.drawn != image {
            self.take_away(surface);
            if self.graphics != Some(Graphics::Kitty) {
                surface.clear()?;
            }
        }
        Ok(())
    }

    /// Draws the image over the frame.
    pub(crate) fn draw(&mut self, image: Option<(&DecodedPicture, Rect)>, surface: &mut dyn Surface) {
        let (Some(graphics), Some((decoded, area))) = (self.graphics, image) else { return };
        let Ok(pixels) = &decoded.pixels else { return };
        if self.drawn == Some((decoded.number, area)) {
            return;
        }
        let (pixels, sides) = (Arc::clone(pixels), decoded.sides);
        // A terminal that rejects it loses nothing else.
        let _ = surface.send_made(Box::new(move || graphics.draw_scaled(&pixels, sides, area)));
        self.drawn = Some((decoded.number, area));
    }

    /// The terminal was cleared, or is about to be.
    pub(crate) fn forget(&mut self) {
        self.drawn = None;
    }

    /// Deletes the image from the terminal.
    pub(crate) fn take_away(&mut self, surface: &mut dyn Surface) {
        if let (Some(graphics), Some(_)) = (self.graphics, self.drawn.take()) {
            let _ = surface.send(graphics.clear());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Frame;
    use ratatui::layout::Size;

    #[test]
    fn graphics_protocol_is_detected_and_not_in_tmux() {
        let of = |given: &[(&str, &str)]| {
            Graphics::of(&|name| {
                given.iter().find(|(key, _)| *key == name).map_or(String::new(), |(_, value)| (*value).into())
            })
        };
        assert_eq!(of(&[("TERM", "xterm-kitty")]), Some(Graphics::Kitty));
        assert_eq!(of(&[("TERM", "xterm-256color"), ("TERM_PROGRAM", "WezTerm")]), Some(Graphics::Iterm2));
        assert_eq!(of(&[("TERM", "foot-extra")]), Some(Graphics::Sixel));
        assert_eq!(of(&[("TERM", "xterm-256color")]), None);
        assert_eq!(of(&[("TERM", "xterm-kitty"), ("TMUX", "/tmp/x")]), None);
    }

    #[test]
    fn sequences_are_complete_and_restore_the_cursor() {
        let pixels = vec![[10, 20, 30]; 84 * 84];
        for graphics in [Graphics::Kitty, Graphics::Iterm2, Graphics::Sixel] {
            let text = String::from_utf8(graphics.draw(&pixels, (84, 84), Rect::new(3, 4, 20, 10))).unwrap();
            assert!(text.starts_with("\x1b7\x1b[5;4H") && text.ends_with("\x1b8"), "{graphics:?}");
            assert!(graphics != Graphics::Kitty || text.matches("\x1b_G").count() == 7);
            assert!(
                graphics != Graphics::Sixel || text.contains("\x1bPq") && text.contains("!160"),
                "{text}"
            );
        }
    }

    #[test]
    fn png_is_read_back_unchanged() {
        let pixels: Vec<[u8; 3]> = (0..300 * 300).map(|i| [(i % 251) as u8, (i / 300) as u8, 7]).collect();
        let file = png(&pixels, (300, 300));
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
        let mut read = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut read).unwrap();
        assert_eq!(read, pixels.as_flattened());
        assert!(png(&pixels, (300, 301)).is_empty());
    }

    #[test]
    fn sixel_band_has_a_bit_per_row() {
        let mut out = String::new();
        let (black, white) = ([0; 3], [255; 3]);
        // Two columns: the left white in the first two rows of seven.
        let pixels: Vec<[u8; 3]> =
            (0..14).map(|i| if i % 2 == 0 && i / 2 < 2 { white } else { black }).collect();
        sixel(&mut out, &pixels, (2, 7)).unwrap();
        assert!(out.contains("#231B?$"), "{out}");
        assert!(out.contains("#16{~$-#16@@$-") || out.contains("#16{~$"), "{out}");
    }

    /// The bytes sent, and how often the surface was cleared.
    #[derive(Default)]
    struct SurfaceLog(String, usize);

    impl Surface for SurfaceLog {
        fn size(&self) -> io::Result<Size> {
            Ok(Size::new(80, 24))
        }
        fn draw(&mut self, _: &mut dyn FnMut(&mut Frame)) -> io::Result<()> {
            Ok(())
        }
        fn clear(&mut self) -> io::Result<()> {
            self.1 += 1;
            Ok(())
        }
        fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.0.push_str(&String::from_utf8_lossy(bytes));
            Ok(())
        }
        fn leave(&mut self) -> io::Result<()> {
            Ok(())
        }
        fn enter(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn decoded(number: u64, sides: (u32, u32)) -> DecodedPicture {
        let pixels = vec![[1, 2, 3]; (sides.0 * sides.1) as usize];
        DecodedPicture { number, sides, pixels: Ok(Arc::new(pixels)) }
    }

    #[test]
    fn image_is_sent_once_and_deleted_before_another() {
        for (graphics, clears) in [(Graphics::Kitty, 0), (Graphics::Sixel, 2)] {
            let mut images = TerminalImages { graphics: Some(graphics), drawn: None };
            let (mut log, area) = (SurfaceLog::default(), Rect::new(2, 3, 20, 10));
            let (one, other) = (decoded(1, (8, 8)), decoded(2, (3000, 2)));
            for shown in [Some((&one, area)), Some((&one, area)), Some((&other, area)), None, None] {
                images.before(shown, &mut log).unwrap();
                images.draw(shown, &mut log);
            }
            assert_eq!((log.0.matches("\x1b[4;3H").count(), log.1), (2, clears), "{graphics:?}");
            assert_eq!(log.0.matches("a=d").count(), if graphics == Graphics::Kitty { 2 } else { 0 });
            assert!(graphics != Graphics::Kitty || log.0.contains("s=1024,v=1,"), "as small as need be");
        }
    }
}
