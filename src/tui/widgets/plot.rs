//! A line chart: braille dots, columns of blocks, or ASCII; axis labels beside it.

use super::{Ctx, put};
use crate::text;
use crate::theme::{Glyphs, Role};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

/// One series.
pub struct Trace<'a> {
    /// `(x, y)` with rising x.
    pub points: &'a [(f64, f64)],
    /// Its look.
    pub style: Style,
    /// Single points rather than a line.
    pub dots: bool,
}

/// Draws traces with axis labels into `area`; `x` is the window on the x axis.
pub fn plot(ctx: &Ctx<'_>, buf: &mut Buffer, area: Rect, traces: &[Trace<'_>], x: (f64, f64)) {
    let cells = usize::from(area.width.saturating_sub(8));
    let calm: Vec<Vec<(f64, f64)>> = traces.iter().map(|trace| thinned(trace, x, cells)).collect();
    let traces: Vec<Trace<'_>> =
        traces.iter().zip(&calm).map(|(trace, points)| Trace { points, ..*trace }).collect();
    let traces = traces.as_slice();
    let visible = |trace: &&Trace<'_>| trace.points.iter().any(|point| inside(point.0, x));
    let Some((low, high)) = bounds(traces, x) else {
        let row = usize::from(area.height / 2);
        put(buf, area, row, Line::from(ctx.s("no values yet", Role::Dim)).centered());
        return;
    };
    if area.height < 2 || area.width < 8 {
        return;
    }
    let labels = [text::si(high), text::si((low + high) / 2.0), text::si(low)];
    let gutter =
        labels.iter().map(|label| text::width(label)).max().unwrap_or(0).min(usize::from(area.width / 2));
    let canvas = Rect {
        x: area.x + gutter as u16 + 2,
        width: area.width.saturating_sub(gutter as u16 + 2),
        height: area.height - 1,
        ..area
    };
    axes(ctx, buf, area, canvas, &labels, gutter, x);
    let window = Window { x, y: (low, high), area: canvas };
    for trace in traces.iter().filter(visible) {
        match ctx.glyphs() {
            Glyphs::Braille if !trace.dots => braille(buf, &window, trace),
            Glyphs::Block if !trace.dots => columns(buf, &window, trace, Glyphs::Block),
            glyphs => points(buf, &window, trace, glyphs),
        }
    }
}

fn axes(
    ctx: &Ctx<'_>,
    buf: &mut Buffer,
    area: Rect,
    canvas: Rect,
    labels: &[String; 3],
    gutter: usize,
    x: (f64, f64),
) {
    let glyphs = ctx.glyphs();
    let last = usize::from(canvas.height) - 1;
    for row in 0..=last {
        let label = match row {
            0 => labels[0].as_str(),
            r if r == last => labels[2].as_str(),
            r if last >= 6 && r == last / 2 => labels[1].as_str(),
            _ => "",
        };
        let tick = if label.is_empty() { glyphs.pick("│", "|") } else { glyphs.pick("┤", "+") };
        let spans = vec![
            ctx.s(text::right(label, gutter, glyphs), Role::Dim),
            ctx.s(" ", Role::Dim),
            Span::styled(tick, ctx.theme.border),
        ];
        put(buf, area, row, Line::from(spans));
    }
    let below = Rect { y: area.y + area.height - 1, height: 1, ..canvas };
    let (from, to) = (text::si(x.0), text::si(x.1));
    let middle = text::si((x.0 + x.1) / 2.0);
    let wide = usize::from(below.width);
    put(buf, below, 0, Line::from(ctx.s(from.clone(), Role::Dim)));
    if from.len() + to.len() + 2 <= wide {
        put(buf, below, 0, Line::from(ctx.s(to.clone(), Role::Dim)).right_aligned());
    }
    if wide >= 40 {
        put(buf, below, 0, Line::from(ctx.s(middle, Role::Dim)).centered());
    }
}

/// At most one point per cell of a line: the mean of those that fall there. More would only paint the noise
/// of neighbours over each other.
fn thinned(trace: &Trace<'_>, x: (f64, f64), cells: usize) -> Vec<(f64, f64)> {
    let points = trace.points.iter().filter(|point| inside(point.0, x) && point.1.is_finite());
    if trace.dots || cells == 0 || points.clone().count() <= cells {
        return trace.points.to_vec();
    }
    let span = (x.1 - x.0).max(f64::MIN_POSITIVE);
    let mut bins = vec![(0.0, 0.0, 0u32); cells];
    for (px, py) in points {
        let at = ((px - x.0) / span * cells as f64) as usize;
        let bin = &mut bins[at.min(cells - 1)];
        *bin = (bin.0 + px, bin.1 + py, bin.2 + 1);
    }
    bins.into_iter()
        .filter(|bin| bin.2 > 0)
        .map(|(px, py, n)| (px / f64::from(n), py / f64::from(n)))
        .collect()
}

fn inside(value: f64, range: (f64, f64)) -> bool {
    value >= range.0 && value <= range.1
}

/// Range of y over what is visible, with a margin, `None` when nothing is.
fn bounds(traces: &[Trace<'_>], x: (f64, f64)) -> Option<(f64, f64)> {
    let mut values = traces
        .iter()
        .flat_map(|trace| trace.points)
        .filter(|point| inside(point.0, x) && point.1.is_finite())
        .map(|point| point.1);
    let first = values.next()?;
    let (low, high) = values.fold((first, first), |(low, high), y| (low.min(y), high.max(y)));
    let span = high - low;
    if span.is_finite() && span > 0.0 {
        Some((low, high))
    } else {
        let margin = if low == 0.0 { 1.0 } else { low.abs() * 0.1 };
        Some((low - margin, low + margin))
    }
}

struct Window {
    x: (f64, f64),
    y: (f64, f64),
    area: Rect,
}

impl Window {
    /// The grid position of a point on `w` x `h` positions; may lie outside in x, never in y.
    fn place(&self, point: (f64, f64), w: usize, h: usize) -> (i64, i64) {
        let span = (self.x.1 - self.x.0).max(f64::MIN_POSITIVE);
        let x = (point.0 - self.x.0) / span * (w.saturating_sub(1)) as f64;
        let rise = (point.1 - self.y.0) / (self.y.1 - self.y.0);
        let y = (1.0 - rise.clamp(0.0, 1.0)) * (h.saturating_sub(1)) as f64;
        let limit = w as f64 * 4.0;
        (x.clamp(-limit, limit).round() as i64, y.round() as i64)
    }
}

fn braille(buf: &mut Buffer, window: &Window, trace: &Trace<'_>) {
    let (w, h) = (usize::from(window.area.width) * 2, usize::from(window.area.height) * 4);
    let mut grid = vec![0u8; usize::from(window.area.width) * usize::from(window.area.height)];
    let mut dot = |x: i64, y: i64| {
        let (Ok(x), Ok(y)) = (usize::try_from(x), usize::try_from(y)) else { return };
        if x < w && y < h {
            // Bits of a braille cell: two columns of four, the lowest row added last in Unicode.
            const BITS: [[u8; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];
            grid[y / 4 * (w / 2) + x / 2] |= BITS[x % 2][y % 4];
        }
    };
    walk(window, trace, w, h, &mut dot);
    for (i, bits) in grid.iter().enumerate().filter(|(_, bits)| **bits != 0) {
        let symbol = char::from_u32(0x2800 + u32::from(*bits)).unwrap_or(' ');
        set(buf, window.area, i % (w / 2), i / (w / 2), symbol, trace.style);
    }
}

fn points(buf: &mut Buffer, window: &Window, trace: &Trace<'_>, glyphs: Glyphs) {
    let (w, h) = (usize::from(window.area.width), usize::from(window.area.height));
    let symbol = match (glyphs, trace.dots) {
        (Glyphs::Ascii, true) => 'o',
        (Glyphs::Ascii, false) => '*',
        _ => '•',
    };
    let area = window.area;
    walk(window, trace, w, h, &mut |x, y| {
        if let (Ok(x), Ok(y)) = (usize::try_from(x), usize::try_from(y)) {
            set(buf, area, x, y, symbol, trace.style);
        }
    });
}

/// Filled columns: the mean of each cell's points.
fn columns(buf: &mut Buffer, window: &Window, trace: &Trace<'_>, glyphs: Glyphs) {
    let (w, h) = (usize::from(window.area.width), usize::from(window.area.height));
    let mut sums = vec![(0.0, 0u32); w];
    for point in trace.points.iter().filter(|point| inside(point.0, window.x)) {
        let (x, _) = window.place(*point, w, h);
        if let Some(sum) = usize::try_from(x).ok().and_then(|x| sums.get_mut(x)) {
            *sum = (sum.0 + point.1, sum.1 + 1);
        }
    }
    let mut height = 0;
    for (x, (sum, n)) in sums.into_iter().enumerate() {
        if n > 0 {
            let share = (sum / f64::from(n) - window.y.0) / (window.y.1 - window.y.0);
            height = ((share.clamp(0.0, 1.0) * (h * 8) as f64).round() as usize).max(1);
        }
        for row in 0..h {
            let here = height.saturating_sub((h - 1 - row) * 8).min(8);
            if here > 0 {
                let symbol = glyphs.ramp()[here - 1].chars().next().unwrap_or(' ');
                set(buf, window.area, x, row, symbol, trace.style);
            }
        }
    }
}

/// Calls `dot` for each position of a trace: single points, or lines between neighbours.
fn walk(window: &Window, trace: &Trace<'_>, w: usize, h: usize, dot: &mut impl FnMut(i64, i64)) {
    let mut last: Option<((f64, f64), (i64, i64))> = None;
    for point in trace.points.iter().filter(|point| point.1.is_finite()) {
        let to = window.place(*point, w, h);
        let visible = inside(point.0, window.x);
        if trace.dots {
            if visible {
                dot(to.0, to.1);
            }
            continue;
        }
        match last {
            Some((before, from)) if visible || inside(before.0, window.x) => line(from, to, dot),
            _ if visible => dot(to.0, to.1),
            _ => {}
        }
        last = Some((*point, to));
    }
}

/// Every grid position on the way from `a` to `b`.
fn line(a: (i64, i64), b: (i64, i64), dot: &mut impl FnMut(i64, i64)) {
    let steps = (b.0 - a.0).abs().max((b.1 - a.1).abs()).max(1);
    for i in 0..=steps {
        let t = i as f64 / steps as f64;
        let at = |from: i64, to: i64| (from as f64 + (to - from) as f64 * t).round() as i64;
        dot(at(a.0, b.0), at(a.1, b.1));
    }
}

fn set(buf: &mut Buffer, area: Rect, x: usize, y: usize, symbol: char, style: Style) {
    let (Ok(x), Ok(y)) = (u16::try_from(x), u16::try_from(y)) else { return };
    if x < area.width
        && y < area.height
        && let Some(cell) = buf.cell_mut((area.x + x, area.y + y))
    {
        cell.set_char(symbol).set_style(style);
    }
}
