//! Logged pictures on terminals that draw by themselves: sent when what is shown has changed, taken away
//! before something else is drawn there.

use super::play::graphics::Graphics;
use super::terminal::Surface;
use rankdeck_tui::DecodedPicture;
use rankdeck_tui::play::picture::scaled;
use ratatui::layout::Rect;
use std::io;

/// Most pixels of a side that are sent.
const MOST: u32 = 1024;

/// The picture on the terminal.
#[derive(Debug, Default)]
pub(super) struct Pictures {
    graphics: Option<Graphics>,
    /// Number and place of the picture that is there.
    drawn: Option<(u64, Rect)>,
}

impl Pictures {
    /// As this terminal takes them.
    pub fn here() -> Pictures {
        Pictures { graphics: Graphics::here(), drawn: None }
    }

    /// The terminal draws them.
    pub fn are_drawn(&self) -> bool {
        self.graphics.is_some()
    }

    /// A frame is about to be drawn with this picture: another one goes. Most terminals let it go with the
    /// cells beneath only, so that these are drawn anew.
    pub fn before(
        &mut self,
        wanted: Option<(&DecodedPicture, Rect)>,
        surface: &mut dyn Surface,
    ) -> io::Result<()> {
        let wanted = wanted.map(|(decoded, area)| (decoded.number, area));
        if self.drawn.is_some() && self.drawn != wanted {
            self.take_away(surface);
            if self.graphics != Some(Graphics::Kitty) {
                surface.clear()?;
            }
        }
        Ok(())
    }

    /// The frame is drawn: the picture goes over it.
    pub fn draw(&mut self, wanted: Option<(&DecodedPicture, Rect)>, surface: &mut dyn Surface) {
        let (Some(graphics), Some((decoded, area))) = (self.graphics, wanted) else { return };
        let Ok(pixels) = &decoded.pixels else { return };
        if self.drawn == Some((decoded.number, area)) {
            return;
        }
        let (width, height) = decoded.sides;
        let longest = width.max(height).max(1);
        let small = |side: u32| (u64::from(side) * u64::from(MOST) / u64::from(longest)).max(1) as u32;
        let sent = match longest > MOST {
            true => {
                let to = (small(width), small(height));
                let sides = |(w, h): (u32, u32)| (w as usize, h as usize);
                graphics.draw(&scaled(pixels, sides((width, height)), sides(to)), to, area)
            }
            false => graphics.draw(pixels, (width, height), area),
        };
        // A terminal that does not take it loses nothing else.
        let _ = surface.send(&sent);
        self.drawn = Some((decoded.number, area));
    }

    /// The terminal was cleared, or is about to be.
    pub fn forget(&mut self) {
        self.drawn = None;
    }

    /// Takes the picture from the terminal.
    pub fn take_away(&mut self, surface: &mut dyn Surface) {
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
    use std::sync::Arc;

    /// What was sent, and how often the surface was cleared.
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
        fn copy(&mut self, _: &str) -> io::Result<super::super::terminal::CopyTarget> {
            Ok(super::super::terminal::CopyTarget::Terminal)
        }
    }

    fn decoded(number: u64, sides: (u32, u32)) -> DecodedPicture {
        let pixels = vec![[1, 2, 3]; (sides.0 * sides.1) as usize];
        DecodedPicture { number, sides, pixels: Ok(Arc::new(pixels)) }
    }

    #[test]
    fn a_picture_is_sent_once_and_goes_before_another_is_drawn() {
        for (graphics, clears) in [(Graphics::Kitty, 0), (Graphics::Sixel, 2)] {
            let mut pictures = Pictures { graphics: Some(graphics), drawn: None };
            let (mut told, area) = (SurfaceLog::default(), Rect::new(2, 3, 20, 10));
            let (one, other) = (decoded(1, (8, 8)), decoded(2, (3000, 2)));
            for shown in [Some((&one, area)), Some((&one, area)), Some((&other, area)), None, None] {
                pictures.before(shown, &mut told).unwrap();
                pictures.draw(shown, &mut told);
            }
            assert_eq!((told.0.matches("\x1b[4;3H").count(), told.1), (2, clears), "{graphics:?}");
            assert_eq!(told.0.matches("a=d").count(), if graphics == Graphics::Kitty { 2 } else { 0 });
            assert!(graphics != Graphics::Kitty || told.0.contains("s=1024,v=1,"), "as small as need be");
        }
    }
}
