//! Draws charts with axis labels: lines in braille, columns of blocks or ASCII, and heat maps; horizontal
//! bars in eighths of a cell, and sparklines.
//!
//! Each cell has at most one point of a line, the mean of the values there, since more would only draw the
//! noise of neighbors over each other. Their extremes are drawn behind it, so that no mean hides a spike.

use crate::draw::put;
use crate::text;
use crate::theme::{ColorDepth, Glyphs, Role, Theme};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};

/// A point of a trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dot {
    /// Its position on the x axis.
    pub x: f64,
    /// What the line goes through.
    pub y: f64,
    /// The least value behind it.
    pub low: f64,
    /// The greatest value behind it.
    pub high: f64,
    /// How many values are behind it.
    pub count: u32,
}

/// One series.
#[derive(Debug, Clone)]
pub struct Trace {
    /// With rising x.
    pub dots: Vec<Dot>,
    /// Where values were not finite numbers.
    pub broken: Vec<f64>,
    /// Its style.
    pub style: Style,
    /// Single points rather than a line.
    pub single: bool,
    /// Drawn at its newest point, for terminals without colors.
    pub letter: Option<char>,
}

impl Trace {
    /// Points that are values themselves.
    pub fn plain(points: impl IntoIterator<Item = (f64, f64)>, style: Style, single: bool) -> Trace {
        let dot = |(x, y)| Dot { x, y, low: y, high: y, count: 1 };
        Trace { dots: points.into_iter().map(dot).collect(), broken: Vec::new(), style, single, letter: None }
    }
}

/// Something that happened.
#[derive(Debug, Clone)]
pub struct Flag {
    /// Its position on the x axis.
    pub x: f64,
    /// The sign of it.
    pub sign: char,
    /// Its label, where there is room; a line goes down from it.
    pub text: String,
    /// Its style.
    pub style: Style,
    /// At the foot of the chart rather than at its top.
    pub low: bool,
}

/// What a chart is drawn on.
#[derive(Debug, Clone)]
pub struct Axes {
    /// The visible range of the x axis.
    pub x: (f64, f64),
    /// Its labels: left end, middle, right end.
    pub labels: [String; 3],
    /// The y axis is logarithmic.
    pub log: bool,
    /// Positions of cursors.
    pub cursors: Vec<f64>,
    /// What happened.
    pub flags: Vec<Flag>,
}

impl Axes {
    /// A linear chart over this range with these labels.
    pub fn new(x: (f64, f64), labels: [String; 3]) -> Axes {
        Axes { x, labels, log: false, cursors: Vec::new(), flags: Vec::new() }
    }

    /// A linear chart over steps.
    pub fn steps(x: (f64, f64)) -> Axes {
        Axes::new(x, text::apart([x.0, (x.0 + x.1) / 2.0, x.1]))
    }
}

/// Draws traces with axis labels into `area`; returns where the traces themselves are.
pub fn plot(theme: &Theme, buf: &mut Buffer, area: Rect, traces: &[Trace], axes: &Axes) -> Rect {
    let cells = usize::from(area.width.saturating_sub(8));
    let traces: Vec<Trace> = traces.iter().map(|trace| reduced(trace, axes, cells)).collect();
    let traces = traces.as_slice();
    let Some((low, high)) = bounds(traces, axes.x) else {
        let row = usize::from(area.height / 2);
        let text = if axes.log { "no values above 0" } else { "no data yet" };
        put(buf, area, row, Line::from(styled(theme, text, Role::Dim)).centered());
        return Rect::default();
    };
    let labels = y_labels((low, high), axes);
    let Some(canvas) = canvas(area, &labels) else { return Rect::default() };
    let gutter = usize::from(canvas.x - area.x).saturating_sub(2);
    draw_axes(theme, buf, area, canvas, &labels, gutter, axes);
    let window = PlotWindow { x: axes.x, y: (low, high), area: canvas };
    for x in axes.cursors.iter().filter(|x| inside(**x, axes.x)) {
        let (x, _) = window.place((*x, low), usize::from(canvas.width), usize::from(canvas.height));
        let sign = theme.glyphs.pick("│", "|").chars().next().unwrap_or('|');
        (0..usize::from(canvas.height)).for_each(|row| set(buf, canvas, x, row, sign, theme.accent));
    }
    axes.flags.iter().for_each(|flag| draw_flag(theme, buf, &window, flag));
    let visible = |trace: &&Trace| trace.dots.iter().any(|dot| inside(dot.x, axes.x));
    traces.iter().filter(visible).for_each(|trace| draw_envelope(theme, buf, &window, trace));
    // Where lines cross, both stay visible, in the color of the later one.
    let mut lines = vec![0u8; usize::from(canvas.width) * usize::from(canvas.height)];
    for trace in traces.iter().filter(visible) {
        match theme.glyphs {
            Glyphs::Braille if !trace.single => draw_braille(buf, &window, trace, &mut lines),
            Glyphs::Block if !trace.single => draw_columns(buf, &window, trace, Glyphs::Block),
            glyphs => draw_points(buf, &window, trace, glyphs),
        }
    }
    traces.iter().for_each(|trace| draw_broken(theme, buf, &window, trace));
    traces.iter().filter(visible).for_each(|trace| draw_letter(buf, &window, trace));
    draw_flag_labels(buf, &window, &axes.flags);
    canvas
}

/// Labels of the y axis: top, middle, bottom.
fn y_labels((low, high): (f64, f64), axes: &Axes) -> [String; 3] {
    let value = |y: f64| if axes.log { 10f64.powf(y) } else { y };
    text::apart([value(high), value((low + high) / 2.0), value(low)])
}

/// Where lines are drawn: right of the labels of the y axis and above those of the x axis.
fn canvas(area: Rect, labels: &[String; 3]) -> Option<Rect> {
    if area.height < 2 || area.width < 8 {
        return None;
    }
    let gutter =
        labels.iter().map(|label| text::width(label)).max().unwrap_or(0).min(usize::from(area.width / 2));
    let left = gutter as u16 + 2;
    Some(Rect { x: area.x + left, width: area.width.saturating_sub(left), height: area.height - 1, ..area })
}

/// The letter of a line at its newest point.
fn draw_letter(buf: &mut Buffer, window: &PlotWindow, trace: &Trace) {
    let newest = trace.dots.iter().rev().find(|dot| inside(dot.x, window.x));
    if let (Some(letter), Some(dot)) = (trace.letter, newest) {
        let (w, h) = (usize::from(window.area.width), usize::from(window.area.height));
        let (x, y) = window.place((dot.x, dot.y), w, h);
        set(buf, window.area, x, usize::try_from(y).unwrap_or(0), letter, trace.style);
    }
}

/// Labels flags next to their signs, over what is drawn there, unless another flag is there.
fn draw_flag_labels(buf: &mut Buffer, window: &PlotWindow, flags: &[Flag]) {
    let (w, h) = (usize::from(window.area.width), usize::from(window.area.height));
    let seen = |flag: &&Flag| inside(flag.x, window.x) && !flag.low;
    let column = |flag: &Flag| usize::try_from(window.place((flag.x, window.y.0), w, h).0).unwrap_or(0);
    let mut columns: Vec<(usize, &Flag)> =
        flags.iter().filter(seen).map(|flag| (column(flag), flag)).collect();
    columns.sort_by_key(|(x, _)| *x);
    let ends = columns.iter().skip(1).map(|(x, _)| *x).chain([w]);
    for ((x, flag), end) in columns.iter().zip(ends) {
        let room = end.saturating_sub(x + 1);
        if !flag.text.is_empty() && text::width(&flag.text) <= room {
            let from = Rect { x: window.area.x + *x as u16 + 1, width: room as u16, ..window.area };
            put(buf, from, 0, Line::from(Span::styled(flag.text.clone(), flag.style)));
        }
    }
}

/// Text with a meaning.
fn styled(theme: &Theme, text: impl Into<String>, role: Role) -> Span<'static> {
    Span::styled(text.into(), theme.style(role))
}

fn draw_axes(
    theme: &Theme,
    buf: &mut Buffer,
    area: Rect,
    canvas: Rect,
    labels: &[String; 3],
    gutter: usize,
    axes: &Axes,
) {
    let glyphs = theme.glyphs;
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
            styled(theme, text::right(label, gutter, glyphs), Role::Dim),
            styled(theme, " ", Role::Dim),
            Span::styled(tick, theme.border),
        ];
        put(buf, area, row, Line::from(spans));
    }
    let below = Rect { y: area.y + area.height - 1, height: 1, ..canvas };
    let [from, middle, to] = axes.labels.clone();
    let wide = usize::from(below.width);
    put(buf, below, 0, Line::from(styled(theme, from.clone(), Role::Dim)));
    if from.len() + to.len() + 2 <= wide {
        put(buf, below, 0, Line::from(styled(theme, to.clone(), Role::Dim)).right_aligned());
    }
    if wide >= 40 && from.len() + middle.len() + to.len() + 4 <= wide {
        put(buf, below, 0, Line::from(styled(theme, middle, Role::Dim)).centered());
    }
}

/// A trace as it is drawn: on a logarithmic axis without what has no logarithm there, and of a line at most
/// one point per cell.
fn reduced(trace: &Trace, axes: &Axes, cells: usize) -> Trace {
    let height = |y: f64| if axes.log { y.log10() } else { y };
    let drawn = |dot: &Dot| {
        let y = height(dot.y);
        let reach = |to: f64| Some(height(to)).filter(|to| to.is_finite()).unwrap_or(y);
        (y.is_finite()).then(|| Dot { y, low: reach(dot.low), high: reach(dot.high), ..*dot })
    };
    let dots: Vec<Dot> = trace.dots.iter().filter_map(drawn).collect();
    let seen = || dots.iter().filter(|dot| inside(dot.x, axes.x));
    if trace.single || cells == 0 || seen().count() <= cells {
        return Trace { dots, ..trace.clone() };
    }
    let span = (axes.x.1 - axes.x.0).max(f64::MIN_POSITIVE);
    let mut bins: Vec<Option<Dot>> = vec![None; cells];
    for dot in seen() {
        let at = ((dot.x - axes.x.0) / span * cells as f64) as usize;
        let bin = &mut bins[at.min(cells - 1)];
        *bin = Some(match bin {
            Some(bin) => {
                let count = bin.count.saturating_add(dot.count).max(1);
                let share = f64::from(dot.count) / f64::from(count);
                let mean = |a: f64, b: f64| a * (1.0 - share) + b * share;
                let (low, high) = (bin.low.min(dot.low), bin.high.max(dot.high));
                Dot { x: mean(bin.x, dot.x), y: mean(bin.y, dot.y), low, high, count }
            }
            None => *dot,
        });
    }
    Trace { dots: bins.into_iter().flatten().collect(), ..trace.clone() }
}

fn inside(value: f64, range: (f64, f64)) -> bool {
    value >= range.0 && value <= range.1
}

/// Range of y over what is visible, with a margin, `None` when nothing is.
fn bounds(traces: &[Trace], x: (f64, f64)) -> Option<(f64, f64)> {
    let mut values = traces
        .iter()
        .flat_map(|trace| &trace.dots)
        .filter(|dot| inside(dot.x, x) && dot.y.is_finite())
        .flat_map(|dot| [dot.low.min(dot.y), dot.high.max(dot.y)]);
    let first = values.next()?;
    let (low, high) = values.fold((first, first), |(low, high), y| (low.min(y), high.max(y)));
    let span = high - low;
    if span.is_finite() && span > 0.0 {
        Some((low, high))
    } else {
        // A constant 0 is neither negative nor positive: its axis starts at it.
        let (below, above) = if low == 0.0 { (0.0, 1.0) } else { (low.abs() * 0.1, low.abs() * 0.1) };
        Some((low - below, low + above))
    }
}

/// What of the data is visible, and where.
struct PlotWindow {
    x: (f64, f64),
    y: (f64, f64),
    area: Rect,
}

impl PlotWindow {
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

/// From the least to the greatest value behind each point.
fn draw_envelope(theme: &Theme, buf: &mut Buffer, window: &PlotWindow, trace: &Trace) {
    let style = theme.border;
    let apart = trace.dots.iter().filter(|dot| dot.low < dot.high && inside(dot.x, window.x));
    if theme.glyphs == Glyphs::Braille {
        for dot in apart {
            let ends = [(dot.x, dot.low), (dot.x, dot.high)];
            let mut alone = vec![0u8; usize::from(window.area.width) * usize::from(window.area.height)];
            draw_braille(buf, window, &Trace::plain(ends, style, false), &mut alone);
        }
        return;
    }
    let (w, h) = (usize::from(window.area.width), usize::from(window.area.height));
    let shade = theme.glyphs.pick("░", ":").chars().next().unwrap_or(':');
    for dot in apart {
        let (x, bottom) = window.place((dot.x, dot.low), w, h);
        let (_, top) = window.place((dot.x, dot.high), w, h);
        (top..=bottom).filter_map(|y| usize::try_from(y).ok()).for_each(|y| {
            set(buf, window.area, x, y, shade, style);
        });
    }
}

/// A sign at the foot of the chart wherever a value was not a number.
fn draw_broken(theme: &Theme, buf: &mut Buffer, window: &PlotWindow, trace: &Trace) {
    let (w, h) = (usize::from(window.area.width), usize::from(window.area.height));
    let sign = theme.glyphs.pick("✗", "x").chars().next().unwrap_or('x');
    for x in trace.broken.iter().filter(|x| inside(**x, window.x)) {
        let (x, _) = window.place((*x, window.y.0), w, h);
        set(buf, window.area, x, h.saturating_sub(1), sign, theme.bad);
    }
}

fn draw_flag(theme: &Theme, buf: &mut Buffer, window: &PlotWindow, flag: &Flag) {
    if !inside(flag.x, window.x) {
        return;
    }
    let (w, h) = (usize::from(window.area.width), usize::from(window.area.height));
    let (x, _) = window.place((flag.x, window.y.0), w, h);
    if !flag.text.is_empty() {
        let line = theme.glyphs.pick("┊", ":").chars().next().unwrap_or(':');
        (0..h).for_each(|row| set(buf, window.area, x, row, line, theme.border));
    }
    set(buf, window.area, x, if flag.low { h.saturating_sub(1) } else { 0 }, flag.sign, flag.style);
}

/// Draws a line; `under` has the dots of the lines before it.
fn draw_braille(buf: &mut Buffer, window: &PlotWindow, trace: &Trace, under: &mut [u8]) {
    let (w, h) = (usize::from(window.area.width) * 2, usize::from(window.area.height) * 4);
    let mut grid = vec![0u8; under.len()];
    let mut dot = |x: i64, y: i64| {
        let (Ok(x), Ok(y)) = (usize::try_from(x), usize::try_from(y)) else { return };
        if x < w && y < h {
            // Bits of a braille cell: two columns of four, the lowest row added last in Unicode.
            const BITS: [[u8; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];
            grid[y / 4 * (w / 2) + x / 2] |= BITS[x % 2][y % 4];
        }
    };
    walk(window, trace, w, h, &mut dot);
    for (i, (bits, under)) in grid.iter().zip(under).enumerate().filter(|(_, (bits, _))| **bits != 0) {
        *under |= bits;
        let symbol = char::from_u32(0x2800 + u32::from(*under)).unwrap_or(' ');
        set(buf, window.area, (i % (w / 2)) as i64, i / (w / 2), symbol, trace.style);
    }
}

fn draw_points(buf: &mut Buffer, window: &PlotWindow, trace: &Trace, glyphs: Glyphs) {
    let (w, h) = (usize::from(window.area.width), usize::from(window.area.height));
    let symbol = match (glyphs, trace.single) {
        (Glyphs::Ascii, true) => 'o',
        (Glyphs::Ascii, false) => '*',
        _ => '•',
    };
    let area = window.area;
    walk(window, trace, w, h, &mut |x, y| {
        if let Ok(y) = usize::try_from(y) {
            set(buf, area, x, y, symbol, trace.style);
        }
    });
}

/// Filled columns: the mean of each cell's points.
fn draw_columns(buf: &mut Buffer, window: &PlotWindow, trace: &Trace, glyphs: Glyphs) {
    let (w, h) = (usize::from(window.area.width), usize::from(window.area.height));
    let mut sums = vec![(0.0, 0u32); w];
    for dot in trace.dots.iter().filter(|dot| inside(dot.x, window.x)) {
        let (x, _) = window.place((dot.x, dot.y), w, h);
        if let Some(sum) = usize::try_from(x).ok().and_then(|x| sums.get_mut(x)) {
            *sum = (sum.0 + dot.y, sum.1 + 1);
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
                set(buf, window.area, x as i64, row, symbol, trace.style);
            }
        }
    }
}

/// Calls `dot` for each position of a trace: single points, or lines between neighbors.
fn walk(window: &PlotWindow, trace: &Trace, w: usize, h: usize, dot: &mut impl FnMut(i64, i64)) {
    let mut last: Option<(f64, (i64, i64))> = None;
    for at in trace.dots.iter().filter(|at| at.y.is_finite()) {
        let to = window.place((at.x, at.y), w, h);
        let visible = inside(at.x, window.x);
        if trace.single {
            if visible {
                dot(to.0, to.1);
            }
            continue;
        }
        match last {
            Some((before, from)) if visible || inside(before, window.x) => line(from, to, dot),
            _ if visible => dot(to.0, to.1),
            _ => {}
        }
        last = Some((at.x, to));
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

fn set(buf: &mut Buffer, area: Rect, x: i64, y: usize, symbol: char, style: Style) {
    let (Ok(x), Ok(y)) = (u16::try_from(x), u16::try_from(y)) else { return };
    if x < area.width
        && y < area.height
        && let Some(cell) = buf.cell_mut((area.x + x, area.y + y))
    {
        cell.set_char(symbol).set_style(style);
    }
}

/// Little to much: red, green and blue of Viridis (Smith and van der Walt 2015), which rises in brightness
/// and stays distinguishable with color blindness.
pub const HEAT_RAMP: [[u8; 3]; 10] = [
    [0x44, 0x01, 0x54],
    [0x48, 0x28, 0x78],
    [0x3e, 0x49, 0x89],
    [0x31, 0x68, 0x8e],
    [0x26, 0x82, 0x8e],
    [0x1f, 0x9e, 0x89],
    [0x35, 0xb7, 0x79],
    [0x6e, 0xce, 0x58],
    [0xb5, 0xde, 0x2b],
    [0xfd, 0xe7, 0x25],
];
/// Little to much, without colors.
const HEAT_SHADES: [char; 4] = ['░', '▒', '▓', '█'];
const HEAT_SIGNS: [char; 9] = ['.', ':', '-', '=', '+', '*', '#', '%', '@'];

/// Levels by column from the left and row from the bottom; `None` where there is no value.
pub type HeatColumns = Vec<Option<Vec<f64>>>;

/// What a heat map shows.
pub struct HeatMap<'a> {
    /// The values at its bottom and top; `None`: there are none.
    pub range: Option<(f64, f64)>,
    /// Computes levels from 0 to 1 on a grid of columns and rows.
    pub levels: &'a dyn Fn(usize, usize) -> Option<HeatColumns>,
}

/// Draws a heat map with axis labels; returns the area of the map itself. `height`: position of the
/// horizontal cursor, from 0 at the bottom to 1 at the top.
pub fn heat_map(
    theme: &Theme,
    depth: ColorDepth,
    buf: &mut Buffer,
    area: Rect,
    map: &HeatMap<'_>,
    axes: &Axes,
    height: Option<f64>,
) -> Rect {
    let linear = Axes { log: false, ..axes.clone() };
    let Some(y) = map.range else {
        let none = Span::styled("no data here", theme.dim);
        put(buf, area, usize::from(area.height / 2), Line::from(none).centered());
        return Rect::default();
    };
    let labels = y_labels(y, &linear);
    let Some(canvas) = canvas(area, &labels) else { return Rect::default() };
    let gutter = usize::from(canvas.x - area.x).saturating_sub(2);
    draw_axes(theme, buf, area, canvas, &labels, gutter, &linear);
    let plain = depth == ColorDepth::None || theme.name == "mono";
    let halves = if plain || theme.glyphs == Glyphs::Ascii { 1 } else { 2 };
    let (w, h) = (usize::from(canvas.width), usize::from(canvas.height));
    let painter = HeatPainter { theme, depth, plain };
    if let Some(columns) = (map.levels)(w, h * halves) {
        for (x, column) in columns.iter().enumerate() {
            let Some(levels) = column else { continue };
            for row in 0..h {
                // Rows go down, levels up.
                let at = |half: usize| levels.get((h - row) * halves - 1 - half).copied().unwrap_or(0.0);
                if let Some((sign, style)) = painter.cell(at(0), at(halves - 1)) {
                    set(buf, canvas, x as i64, row, sign, style);
                }
            }
        }
    }
    let window = PlotWindow { x: axes.x, y, area: canvas };
    let line = |unicode, ascii| theme.glyphs.pick(unicode, ascii).chars().next().unwrap_or('|');
    let level = height.map(|height| ((1.0 - height.clamp(0.0, 1.0)) * (h - 1) as f64).round() as usize);
    for x in axes.cursors.iter().filter(|x| inside(**x, axes.x)) {
        let (x, _) = window.place((*x, y.0), w, h);
        (0..h).for_each(|row| set_over(buf, canvas, x, row, line("│", "|"), theme.accent));
        if let Some(row) = level {
            set_over(buf, canvas, x, row, line("┼", "+"), theme.accent);
        }
    }
    axes.flags.iter().for_each(|flag| draw_flag(theme, buf, &window, flag));
    draw_flag_labels(buf, &window, &axes.flags);
    canvas
}

/// A sign on the color that is there.
fn set_over(buf: &mut Buffer, area: Rect, x: i64, row: usize, sign: char, style: Style) {
    let Ok(x) = u16::try_from(x) else { return };
    if x < area.width
        && let Some(cell) = buf.cell_mut((area.x + x, area.y + row as u16))
    {
        cell.set_char(sign).set_style(Style { bg: None, ..style });
    }
}

struct HeatPainter<'a> {
    theme: &'a Theme,
    depth: ColorDepth,
    plain: bool,
}

impl HeatPainter<'_> {
    /// The color of a level: the brighter the more, on a light background the darker.
    fn color(&self, level: f64) -> Option<Color> {
        let at = heat_step(level, HEAT_RAMP.len())?;
        let rgb = HEAT_RAMP[if self.theme.name == "light" { HEAT_RAMP.len() - 1 - at } else { at }];
        Some(self.depth.color(rgb))
    }

    /// What stands in a cell with this above that; nothing where there is no value.
    fn cell(&self, above: f64, below: f64) -> Option<(char, Style)> {
        let ascii = self.theme.glyphs == Glyphs::Ascii;
        if ascii || self.plain {
            let sign = match ascii {
                true => HEAT_SIGNS[heat_step(above, HEAT_SIGNS.len())?],
                false => HEAT_SHADES[heat_step(above, HEAT_SHADES.len())?],
            };
            let style = if self.plain { Style::new() } else { Style::new().fg(self.color(above)?) };
            return Some((sign, style));
        }
        match (self.color(above), self.color(below)) {
            (Some(above), Some(below)) => Some(('▀', Style::new().fg(above).bg(below))),
            (Some(above), None) => Some(('▀', Style::new().fg(above))),
            (None, Some(below)) => Some(('▄', Style::new().fg(below))),
            (None, None) => None,
        }
    }
}

/// The place of a level among `count` signs or colors; `None` where nothing is.
pub fn heat_step(level: f64, count: usize) -> Option<usize> {
    (level > 0.0).then(|| ((level * count as f64) as usize).min(count.saturating_sub(1)))
}

/// A bar of `cells` cells, filled to `fraction` (clamped to 0..=1; NaN is 0).
pub fn bar(theme: &Theme, fraction: f64, cells: usize, fill: Style) -> [Span<'static>; 2] {
    let fraction = if fraction.is_finite() { fraction.clamp(0.0, 1.0) } else { 0.0 };
    let eighths = (fraction * cells as f64 * 8.0).round() as usize;
    // Something is never shown as nothing, and not quite everything never as everything.
    let eighths = match eighths {
        0 if fraction > 0.0 => 1,
        e if e == cells * 8 && fraction < 1.0 => e.saturating_sub(1),
        e => e,
    };
    let mut filled = theme.glyphs.eighth(8).repeat(eighths / 8);
    let mut used = eighths / 8;
    if !eighths.is_multiple_of(8) {
        filled.push_str(theme.glyphs.eighth(eighths % 8));
        used += 1;
    }
    let rest = theme.glyphs.pick("·", ".").repeat(cells.saturating_sub(used));
    [Span::styled(filled, fill), Span::styled(rest, theme.border)]
}

/// Fill of a load meter: color rises with the share.
pub fn load(theme: &Theme, fraction: f64) -> Style {
    match fraction {
        f if f >= 0.97 => theme.style(Role::Warn),
        _ => theme.fill,
    }
}

/// The newest `cells` values as columns between `low` and `high`; shorter when there are fewer.
pub fn spark(
    values: impl DoubleEndedIterator<Item = f64>,
    cells: usize,
    low: f64,
    high: f64,
    glyphs: Glyphs,
) -> String {
    let ramp = glyphs.ramp();
    let mut newest: Vec<f64> = values.rev().take(cells).collect();
    newest.reverse();
    // Values that do not change are neither high nor low.
    if high <= low {
        return ramp[3].repeat(newest.iter().filter(|value| value.is_finite()).count());
    }
    let span = high - low;
    newest
        .into_iter()
        .map(|value| {
            let level = ((value - low) / span * 7.0).round();
            ramp[if level.is_finite() { level.clamp(0.0, 7.0) as usize } else { 0 }]
        })
        .collect()
}

/// [`spark`] between the smallest and the largest of the values shown.
pub fn spark_fit(values: &[f64], cells: usize, glyphs: Glyphs) -> String {
    let shown = &values[values.len().saturating_sub(cells)..];
    let low = shown.iter().copied().fold(f64::INFINITY, f64::min);
    let high = shown.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    spark(shown.iter().copied(), cells, low, high, glyphs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_maps_to_step() {
        assert_eq!((heat_step(0.0, 4), heat_step(0.01, 4), heat_step(1.0, 4)), (None, Some(0), Some(3)));
    }

    fn text(fraction: f64) -> String {
        bar(&Theme::dark(), fraction, 4, Style::new()).iter().map(|span| span.content.to_string()).collect()
    }

    #[test]
    fn bars_fill_in_eighths_and_are_honest_at_the_ends() {
        assert_eq!([text(0.0), text(0.5), text(1.0)], ["····", "██··", "████"]);
        assert_eq!([text(0.001), text(0.999), text(0.28)], ["▏···", "███▉", "█▏··"]);
        assert_eq!([text(f64::NAN), text(7.0)], ["····", "████"]);
    }

    #[test]
    fn sparklines_show_the_newest() {
        let values = [9.0, 0.0, 50.0, 100.0];
        assert_eq!(spark(values.into_iter(), 3, 0.0, 100.0, Glyphs::Block), "▁▅█");
        assert_eq!(spark_fit(&[1.0, 1.0], 5, Glyphs::Ascii), "--");
    }
}
