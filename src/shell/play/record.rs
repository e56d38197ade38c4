//! Recordings of a policy at play: asciicast (what the terminal would show) and GIF (the picture alone).

use super::gif::Gif;
use super::player::Player;
use rankdeck_proto::show::ShowLine;
use rankdeck_tui::Theme;
use rankdeck_tui::play::scene::Scene;
use rankdeck_tui::play::{Moment, Play, view};
use rankdeck_tui::theme::Role;
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};
use serde_json::json;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;

/// Most bytes of a recording.
pub const MOST: usize = 256 << 20;
/// Pixels of a drawn environment.
const SCENE: (u16, u16) = (400, 240);
/// Between two frames of an animation; viewers show no more.
const GIF_MS: u64 = 50;
/// A picture's side is enlarged up to this.
const PICTURE: u32 = 336;

/// A kind of recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Text with times, for asciinema.
    Cast,
    /// An animation.
    Gif,
}

/// What a recording is made as.
pub struct Recorder {
    form: Form,
    theme: Theme,
    size: (u16, u16),
}

/// What came of it.
pub struct RecordedPlay {
    /// The file.
    pub bytes: Vec<u8>,
    /// Its length.
    pub seconds: f64,
    /// It was cut off at [`MOST`] bytes.
    pub cut: bool,
}

/// Memory that a terminal writes into.
#[derive(Clone, Default)]
struct Paper(Rc<RefCell<Vec<u8>>>);

impl io::Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Recorder {
    /// A recording of so many columns and rows.
    pub fn new(form: Form, theme: Theme, size: (u16, u16)) -> Recorder {
        Recorder { form, theme, size }
    }

    /// Plays to the end, in the recording's own time.
    pub async fn record(&self, player: &mut Player, play: &mut Play) -> Result<RecordedPlay, String> {
        let mut encoder = match self.form {
            Form::Cast => Encoder::Cast(Cast::new(self, &play.name)?),
            Form::Gif => Encoder::Gif { gif: None, waiting: Vec::new(), drawn: None, at_ms: 0 },
        };
        let mut now_ms = 0;
        let cut = loop {
            while play.wants_more() {
                match player.next().await {
                    Some(ShowLine::Unknown) => {}
                    Some(line) => play.push(line),
                    None => play.over = Some(player.end().await),
                }
            }
            if let Some(Err(why)) = &play.over {
                return Err(why.clone());
            }
            encoder.frame(self, play, now_ms)?;
            let cut = encoder.len() > MOST;
            match play.due_ms() {
                Some(due) if !cut => {
                    now_ms = due;
                    play.tick(due);
                }
                _ => break cut,
            }
        };
        // The last picture stays for a moment.
        now_ms += 1000;
        Ok(RecordedPlay { bytes: encoder.finish(now_ms)?, seconds: now_ms as f64 / 1000.0, cut })
    }
}

enum Encoder {
    Cast(Box<Cast>),
    Gif {
        gif: Option<Gif>,
        /// It is written when it is known how long it stays.
        waiting: Vec<[u8; 3]>,
        drawn: Option<Vec<[u8; 3]>>,
        at_ms: u64,
    },
}

impl Encoder {
    fn frame(&mut self, recorder: &Recorder, play: &Play, now_ms: u64) -> Result<(), String> {
        match self {
            Encoder::Cast(cast) => cast.frame(recorder, play, now_ms),
            Encoder::Gif { gif: Some(_), at_ms, .. } if now_ms < *at_ms + GIF_MS => Ok(()),
            Encoder::Gif { gif, waiting, drawn, at_ms } => {
                let Some((pixels, width, height)) = picture(play) else {
                    return match play.moment() {
                        Some(_) => Err("this environment has no picture\nrecord it as FILE.cast".to_owned()),
                        None => Ok(()),
                    };
                };
                match gif {
                    None => (*gif, *waiting) = (Some(Gif::new(width, height)), pixels),
                    // A picture of another size has no place in it.
                    Some(_) if pixels.len() != waiting.len() => {}
                    Some(gif) => {
                        let hundredths = (now_ms / 10).saturating_sub(*at_ms / 10);
                        gif.frame(waiting, drawn.as_deref(), hundredths.clamp(2, 1000) as u16);
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
            Encoder::Cast(cast) => cast.file.len(),
            Encoder::Gif { gif, .. } => gif.as_ref().map_or(0, Gif::len),
        }
    }

    fn finish(self, now_ms: u64) -> Result<Vec<u8>, String> {
        match self {
            Encoder::Cast(mut cast) => {
                cast.event(now_ms, "")?;
                Ok(cast.file.into_bytes())
            }
            Encoder::Gif { gif, waiting, drawn, at_ms } => {
                let mut gif = gif.ok_or("nothing was played")?;
                gif.frame(&waiting, drawn.as_deref(), ((now_ms - at_ms) / 10).clamp(2, 1000) as u16);
                Ok(gif.finish())
            }
        }
    }
}

/// asciicast, version 2.
struct Cast {
    file: String,
    paper: Paper,
    terminal: Terminal<CrosstermBackend<Paper>>,
}

impl Cast {
    fn new(recorder: &Recorder, name: &str) -> Result<Box<Cast>, String> {
        let (width, height) = recorder.size;
        let paper = Paper::default();
        let viewport = Viewport::Fixed(Rect::new(0, 0, width, height));
        let backend = CrosstermBackend::new(paper.clone());
        let terminal = Terminal::with_options(backend, TerminalOptions { viewport })
            .map_err(|error| error.to_string())?;
        let header = json!({
            "version": 2,
            "width": width,
            "height": height,
            "title": format!("rankdeck play {name}"),
            "env": { "TERM": "xterm-256color" },
        });
        let mut cast = Box::new(Cast { file: format!("{header}\n"), paper, terminal });
        cast.event(0, "\x1b[?25l\x1b[2J")?;
        Ok(cast)
    }

    fn frame(&mut self, recorder: &Recorder, play: &Play, now_ms: u64) -> Result<(), String> {
        self.terminal.draw(|frame| view(play, &recorder.theme, frame)).map_err(|error| error.to_string())?;
        let written = std::mem::take(&mut *self.paper.0.borrow_mut());
        self.event(now_ms, &String::from_utf8_lossy(&written))
    }

    fn event(&mut self, at_ms: u64, text: &str) -> Result<(), String> {
        let line = serde_json::to_string(&json!([at_ms as f64 / 1000.0, "o", text]));
        self.file.push_str(&line.map_err(|error| error.to_string())?);
        self.file.push('\n');
        Ok(())
    }
}

/// The environment in pixels.
fn picture(play: &Play) -> Option<(Vec<[u8; 3]>, u16, u16)> {
    let step = play.step()?;
    let scene = play.policy.as_ref().and_then(|policy| Scene::of(&policy.env_id));
    let (seen, action) = match play.moment() {
        Some(Moment::End(end)) => (&end.seen, &[][..]),
        _ => (&step.seen, step.action.as_slice()),
    };
    let (width, height) = SCENE;
    if let Some(canvas) =
        scene.and_then(|scene| scene.pixels(seen, action, usize::from(width), usize::from(height)))
    {
        let raster = &canvas.raster;
        let pixels = (0..raster.height)
            .flat_map(|y| (0..raster.width).map(move |x| colour(raster.at(x, y))))
            .collect();
        return Some((pixels, width, height));
    }
    let picture = step.picture.as_ref()?;
    let pixels = picture.rgb()?;
    let times = (PICTURE / picture.width.max(picture.height)).max(1);
    let (wide, tall) = ((picture.width * times) as usize, (picture.height * times) as usize);
    let sides = (picture.width as usize, picture.height as usize);
    let large = rankdeck_tui::play::picture::scaled(&pixels, sides, (wide, tall));
    Some((large, wide as u16, tall as u16))
}

fn colour(role: Option<Role>) -> [u8; 3] {
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
