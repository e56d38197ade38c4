//! Pictures as terminals take them that can draw: kitty's protocol, iTerm2's, and sixel.

use super::png::png;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rankdeck_tui::play::picture::{indexed, scaled};
use ratatui::layout::Rect;
use std::fmt::Write;

/// Most base64 in one of kitty's sequences.
const CHUNK: usize = 4096;
/// Pixels of a cell where the terminal does not tell them.
const CELL: (u16, u16) = (8, 16);
/// Most pixels of a side.
const MOST: usize = 1024;

/// How a terminal takes pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Graphics {
    /// kitty, ghostty.
    Kitty,
    /// iTerm2, WezTerm.
    Iterm2,
    /// foot, mlterm, contour, and xterm that was started for it.
    Sixel,
}

impl Graphics {
    /// What this terminal takes, by its environment; `None`: characters. tmux passes none of them on.
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

    /// A picture over the cells of an area. The cursor is where it was.
    pub fn draw(self, pixels: &[[u8; 3]], sides: (u32, u32), area: Rect) -> Vec<u8> {
        let mut out = format!("\x1b7\x1b[{};{}H", area.y + 1, area.x + 1);
        // Writes into text do not fail.
        let _ = match self {
            Graphics::Kitty => kitty(&mut out, pixels, sides, area),
            Graphics::Iterm2 => {
                let file = STANDARD.encode(png(pixels, sides.0, sides.1));
                write!(
                    out,
                    "\x1b]1337;File=inline=1;width={};height={};preserveAspectRatio=0;doNotMoveCursor=1:{file}\x07",
                    area.width, area.height
                )
            }
            Graphics::Sixel => {
                let cell = cell();
                let side = |cells: u16, pixels: u16| (usize::from(cells) * usize::from(pixels)).min(MOST);
                let to = (side(area.width, cell.0), side(area.height, cell.1));
                sixel(&mut out, &scaled(pixels, (sides.0 as usize, sides.1 as usize), to), to)
            }
        };
        out.push_str("\x1b8");
        out.into_bytes()
    }

    /// Takes the picture away. Sixels go with the cells beneath.
    pub fn clear(self) -> &'static [u8] {
        match self {
            Graphics::Kitty => b"\x1b_Ga=d,d=A,q=2\x1b\\",
            Graphics::Iterm2 | Graphics::Sixel => b"",
        }
    }
}

/// Pixels of a cell.
fn cell() -> (u16, u16) {
    match crossterm::terminal::window_size() {
        Ok(size) if size.width > 0 && size.height > 0 && size.columns > 0 && size.rows > 0 => {
            (size.width / size.columns, size.height / size.rows)
        }
        _ => CELL,
    }
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

/// Six rows at a time, one colour after the other.
fn sixel(out: &mut String, pixels: &[[u8; 3]], (width, height): (usize, usize)) -> std::fmt::Result {
    let indices: Vec<u8> = pixels.iter().map(|rgb| indexed(*rgb)).collect();
    write!(out, "\x1bPq\"1;1;{width};{height}")?;
    let mut colours = [None; 256];
    for (index, rgb) in indices.iter().zip(pixels) {
        colours[usize::from(*index)].get_or_insert(*rgb);
    }
    for (index, rgb) in colours.iter().enumerate().filter_map(|(index, rgb)| Some((index, (*rgb)?))) {
        let [red, green, blue] = rgb.map(|part| u32::from(part) * 100 / 255);
        write!(out, "#{index};2;{red};{green};{blue}")?;
    }
    for band in 0..height.div_ceil(6) {
        let rows = &indices[band * 6 * width..((band + 1) * 6 * width).min(indices.len())];
        let mut used: Vec<u8> = rows.to_vec();
        used.sort_unstable();
        used.dedup();
        for colour in used {
            write!(out, "#{colour}")?;
            let bits = |x: usize| {
                let column = rows.iter().skip(x).step_by(width).enumerate();
                column.filter(|(_, index)| **index == colour).map(|(y, _)| 1 << y).sum::<u8>()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_that_draw_are_known_and_tmux_does_not() {
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
    fn sequences_are_whole_and_leave_the_cursor() {
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
    fn a_band_of_sixels_has_a_bit_per_row() {
        let mut out = String::new();
        let (black, white) = ([0; 3], [255; 3]);
        // Two columns: the left white in the first two rows of seven.
        let pixels: Vec<[u8; 3]> =
            (0..14).map(|i| if i % 2 == 0 && i / 2 < 2 { white } else { black }).collect();
        sixel(&mut out, &pixels, (2, 7)).unwrap();
        assert!(out.contains("#231B?$"), "{out}");
        assert!(out.contains("#16{~$-#16@@$-") || out.contains("#16{~$"), "{out}");
    }
}
