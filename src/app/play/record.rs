//! Saves a playing policy as an animation: as an asciicast (the terminal) or as a GIF of 256 colors (the image alone).

use super::PolicyPlayer;
use gif::{Encoder, EncodingError, Frame, Repeat};
use rankdeck_kit::theme::indexed;
use rankdeck_kit::{Role, Theme, draw};
use rankdeck_proto::show::ShowLine;
use rankdeck_tui::play::scene::EnvScene;
use rankdeck_tui::play::{Play, PlayFrame, view};
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};
use serde_json::json;
use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::rc::Rc;

/// Maximum size of a recording.
pub const MAX_BYTES: usize = 256 << 20;
/// Pixels of a drawn environment.
const SCENE: (u16, u16) = (400, 240);
/// Minimum interval of GIF frames; viewers slow down faster ones.
const GIF_MS: u64 = 50;
/// Images are enlarged up to this side.
const IMAGE: u32 = 336;

/// A format of recordings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordingFormat {
    /// Terminal output with times, for asciinema.
    Cast,
    /// An animation.
    Gif,
}

/// Makes recordings in one format.
pub struct PlayRecorder {
    form: RecordingFormat,
    theme: Theme,
    size: (u16, u16),
}

/// A finished recording.
pub struct RecordedPlay {
    /// The file's content.
    pub bytes: Vec<u8>,
    /// Its length.
    pub seconds: f64,
    /// It was cut off at [`MAX_BYTES`].
    pub cut: bool,
}

/// A buffer that a terminal writes to.
#[derive(Clone, Default)]
struct TerminalBuffer(Rc<RefCell<Vec<u8>>>);

impl io::Write for TerminalBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl PlayRecorder {
    /// Records with `size` columns and rows.
    pub fn new(form: RecordingFormat, theme: Theme, size: (u16, u16)) -> PlayRecorder {
        PlayRecorder { form, theme, size }
    }

    /// Plays to the end in the recording's own time.
    pub async fn record(&self, player: &mut PolicyPlayer, play: &mut Play) -> Result<RecordedPlay, String> {
        let mut encoder = match self.form {
            RecordingFormat::Cast => RecordingEncoder::Cast(AsciicastWriter::new(self, &play.name)?),
            RecordingFormat::Gif => {
                RecordingEncoder::Gif { gif: None, waiting: Vec::new(), drawn: None, at_ms: 0 }
            }
        };
        let mut now_ms = 0;
        let cut = loop {
            while play.can_read() {
                match player.next().await {
                    Some(ShowLine::Unknown) => {}
                    Some(line) => play.push(line),
                    None => play.end = Some(player.end().await),
                }
            }
            if let Some(Err(why)) = &play.end {
                return Err(why.clone());
            }
            encoder.frame(self, play, now_ms)?;
            let cut = encoder.len() > MAX_BYTES;
            match play.due_ms() {
                Some(due) if !cut => {
                    now_ms = due;
                    play.tick(due);
                }
                _ => break cut,
            }
        };
        // The last frame stays visible for a moment.
        now_ms += 1000;
        Ok(RecordedPlay { bytes: encoder.finish(now_ms)?, seconds: now_ms as f64 / 1000.0, cut })
    }
}

/// The encoder of a format.
enum RecordingEncoder {
    Cast(Box<AsciicastWriter>),
    Gif {
        gif: Option<GifWriter>,
        /// The next frame, written when its duration is known.
        waiting: Vec<[u8; 3]>,
        drawn: Option<Vec<[u8; 3]>>,
        at_ms: u64,
    },
}

impl RecordingEncoder {
    fn frame(&mut self, recorder: &PlayRecorder, play: &Play, now_ms: u64) -> Result<(), String> {
        match self {
            RecordingEncoder::Cast(cast) => cast.frame(recorder, play, now_ms),
            RecordingEncoder::Gif { gif: Some(_), at_ms, .. } if now_ms < *at_ms + GIF_MS => Ok(()),
            RecordingEncoder::Gif { gif, waiting, drawn, at_ms } => {
                let Some((pixels, width, height)) = env_image(play) else {
                    return match play.frame() {
                        Some(_) => {
                            Err("this RL environment renders no image\nsave a FILE.cast instead".to_owned())
                        }
                        None => Ok(()),
                    };
                };
                match gif {
                    None => {
                        *gif = Some(GifWriter::new(width, height).map_err(|error| error.to_string())?);
                        *waiting = pixels;
                    }
                    // Images of another size are skipped.
                    Some(_) if pixels.len() != waiting.len() => {}
                    Some(gif) => {
                        let hundredths = (now_ms / 10).saturating_sub(*at_ms / 10);
                        gif.frame(waiting, drawn.as_deref(), hundredths.clamp(2, 1000) as u16)
                            .map_err(|error| error.to_string())?;
                        *drawn = Some(std::mem::replace(waiting, pixels));
                    }
                }
                *at_ms = now_ms;
                Ok(())
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            RecordingEncoder::Cast(cast) => cast.file.len(),
            RecordingEncoder::Gif { gif, .. } => gif.as_ref().map_or(0, GifWriter::len),
        }
    }

    fn finish(self, now_ms: u64) -> Result<Vec<u8>, String> {
        match self {
            RecordingEncoder::Cast(mut cast) => {
                cast.event(now_ms, "")?;
                Ok(cast.file.into_bytes())
            }
            RecordingEncoder::Gif { gif, waiting, drawn, at_ms } => {
                let mut gif = gif.ok_or("no frames to save")?;
                let hundredths = ((now_ms - at_ms) / 10).clamp(2, 1000) as u16;
                gif.frame(&waiting, drawn.as_deref(), hundredths).map_err(|error| error.to_string())?;
                gif.finish().map_err(|error| error.to_string())
            }
        }
    }
}

/// asciicast, version 2.
struct AsciicastWriter {
    file: String,
    buffer: TerminalBuffer,
    terminal: Terminal<CrosstermBackend<TerminalBuffer>>,
}

impl AsciicastWriter {
    fn new(recorder: &PlayRecorder, name: &str) -> Result<Box<AsciicastWriter>, String> {
        let (width, height) = recorder.size;
        let buffer = TerminalBuffer::default();
        let viewport = Viewport::Fixed(Rect::new(0, 0, width, height));
        let backend = CrosstermBackend::new(buffer.clone());
        let terminal = Terminal::with_options(backend, TerminalOptions { viewport })
            .map_err(|error| error.to_string())?;
        let header = json!({
            "version": 2,
            "width": width,
            "height": height,
            "title": format!("rankdeck play {name}"),
            "env": { "TERM": "xterm-256color" },
        });
        let mut cast = Box::new(AsciicastWriter { file: format!("{header}\n"), buffer, terminal });
        cast.event(0, "\x1b[?25l\x1b[2J")?;
        Ok(cast)
    }

    fn frame(&mut self, recorder: &PlayRecorder, play: &Play, now_ms: u64) -> Result<(), String> {
        self.terminal.draw(|frame| view(play, &recorder.theme, frame)).map_err(|error| error.to_string())?;
        let written = std::mem::take(&mut *self.buffer.0.borrow_mut());
        self.event(now_ms, &String::from_utf8_lossy(&written))
    }

    fn event(&mut self, at_ms: u64, text: &str) -> Result<(), String> {
        let line = serde_json::to_string(&json!([at_ms as f64 / 1000.0, "o", text]));
        self.file.push_str(&line.map_err(|error| error.to_string())?);
        self.file.push('\n');
        Ok(())
    }
}

/// Returns the environment's image.
fn env_image(play: &Play) -> Option<(Vec<[u8; 3]>, u16, u16)> {
    let step = play.step()?;
    let scene = play.policy.as_ref().and_then(|policy| EnvScene::from_env(&policy.env_id));
    let (seen, action) = match play.frame() {
        Some(PlayFrame::End(end)) => (&end.seen, &[][..]),
        _ => (&step.seen, step.action.as_slice()),
    };
    let (width, height) = SCENE;
    if let Some(canvas) =
        scene.and_then(|scene| scene.pixels(seen, action, usize::from(width), usize::from(height)))
    {
        let raster = &canvas.raster;
        let pixels =
            (0..raster.height).flat_map(|y| (0..raster.width).map(move |x| color(raster.at(x, y)))).collect();
        return Some((pixels, width, height));
    }
    let picture = step.picture.as_ref()?;
    let pixels = picture.rgb()?;
    let times = (IMAGE / picture.width.max(picture.height)).max(1);
    let (wide, tall) = ((picture.width * times) as usize, (picture.height * times) as usize);
    let sides = (picture.width as usize, picture.height as usize);
    let large = draw::scaled(&pixels, sides, (wide, tall));
    Some((large, wide as u16, tall as u16))
}

fn color(role: Option<Role>) -> [u8; 3] {
    match role {
        None => [28, 28, 28],
        Some(Role::Text | Role::Strong) => [215, 215, 215],
        Some(Role::Dim) => [108, 108, 108],
        Some(Role::Accent) => [95, 175, 215],
        Some(Role::Good) => [95, 215, 135],
        Some(Role::Warn) => [215, 175, 95],
        Some(Role::Bad) => [215, 95, 95],
    }
}

/// An animation that is written frame by frame and repeats forever.
struct GifWriter {
    encoder: Encoder<Vec<u8>>,
    width: u16,
    height: u16,
}

/// The terminal's 256-color palette. The first 16 entries depend on the terminal and are not used.
fn palette_color(index: u8) -> [u8; 3] {
    const STEPS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    match index {
        0..16 => [0; 3],
        16..232 => {
            let index = usize::from(index - 16);
            [STEPS[index / 36], STEPS[index / 6 % 6], STEPS[index % 6]]
        }
        gray => [8 + 10 * (gray - 232); 3],
    }
}

impl GifWriter {
    /// Starts an animation without frames.
    fn new(width: u16, height: u16) -> Result<GifWriter, EncodingError> {
        let palette: Vec<u8> = (0..=255).flat_map(palette_color).collect();
        let mut encoder = Encoder::new(Vec::new(), width, height, &palette)?;
        encoder.set_repeat(Repeat::Infinite)?;
        Ok(GifWriter { encoder, width, height })
    }

    /// Adds a frame of the animation's size, shown for `hundredths` of a second.
    ///
    /// Writes only the rectangle that differs from `before`, the previous frame.
    fn frame(
        &mut self,
        pixels: &[[u8; 3]],
        before: Option<&[[u8; 3]]>,
        hundredths: u16,
    ) -> Result<(), EncodingError> {
        let (wide, tall) = (usize::from(self.width), usize::from(self.height));
        let (columns, rows) = changed(pixels, before, wide, tall);
        let changed = rows.clone().flat_map(|row| &pixels[row * wide..(row + 1) * wide][columns.clone()]);
        // Neighbors are often equal, and finding the nearest color is slow.
        let mut last = ([0; 3], indexed([0; 3]));
        let indices = changed.map(|rgb| {
            if last.0 != *rgb {
                last = (*rgb, indexed(*rgb));
            }
            last.1
        });
        self.encoder.write_frame(&Frame {
            left: columns.start as u16,
            top: rows.start as u16,
            width: columns.len() as u16,
            height: rows.len() as u16,
            delay: hundredths,
            buffer: indices.collect(),
            ..Frame::default()
        })
    }

    /// Bytes written so far.
    fn len(&self) -> usize {
        self.encoder.get_ref().len()
    }

    /// Ends the animation and returns the file.
    fn finish(self) -> Result<Vec<u8>, EncodingError> {
        self.encoder.into_inner()
    }
}

/// The columns and rows around all pixels that differ, or one pixel if none does.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Each frame as the canvas shows it.
    fn read(file: &[u8]) -> Vec<Vec<[u8; 3]>> {
        let mut options = gif::DecodeOptions::new();
        options.set_color_output(gif::ColorOutput::RGBA);
        let mut decoder = options.read_info(file).unwrap();
        let wide = usize::from(decoder.width());
        let mut canvas = vec![[0; 3]; wide * usize::from(decoder.height())];
        let mut frames = Vec::new();
        while let Some(frame) = decoder.read_next_frame().unwrap() {
            let rows = frame.buffer.chunks(4 * usize::from(frame.width)).enumerate();
            for (y, row) in rows {
                let start = (usize::from(frame.top) + y) * wide + usize::from(frame.left);
                let pixels = row.chunks_exact(4).map(|pixel| [pixel[0], pixel[1], pixel[2]]);
                pixels.enumerate().for_each(|(x, pixel)| canvas[start + x] = pixel);
            }
            frames.push(canvas.clone());
        }
        frames
    }

    #[test]
    fn gif_frames_are_read_back_unchanged() {
        let mut random = 1u32;
        let noise: Vec<[u8; 3]> = (0..250 * 240)
            .map(|_| {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                palette_color(((random >> 24) as u8).max(16))
            })
            .collect();
        let black = vec![[0; 3]; noise.len()];
        let mut gif = GifWriter::new(250, 240).unwrap();
        gif.frame(&noise, None, 5).unwrap();
        gif.frame(&black, Some(&noise), 5).unwrap();
        assert_eq!(read(&gif.finish().unwrap()), [noise, black]);
    }

    #[test]
    fn gif_frame_writes_only_the_changed_rectangle() {
        let before = vec![[0; 3]; 12];
        let mut now = before.clone();
        assert_eq!(changed(&now, None, 4, 3), (0..4, 0..3));
        assert_eq!(changed(&now, Some(&before), 4, 3), (0..1, 0..1));
        (now[5], now[11]) = ([8; 3], [8; 3]);
        assert_eq!(changed(&now, Some(&before), 4, 3), (1..4, 1..3));
        let mut gif = GifWriter::new(4, 3).unwrap();
        gif.frame(&before, None, 5).unwrap();
        let whole = gif.len();
        gif.frame(&now, Some(&before), 5).unwrap();
        assert!(gif.len() - whole < 40);
        let file = gif.finish().unwrap();
        assert!(file.starts_with(b"GIF89a") && file.ends_with(&[0, 0x3b]));
        assert_eq!(read(&file), [before, now]);
    }

    #[test]
    fn palette_contains_exact_colors() {
        for rgb in [[0, 0, 0], [255, 255, 255], [95, 135, 175], [8, 8, 8]] {
            assert_eq!(palette_color(indexed(rgb)), rgb);
        }
    }
}
