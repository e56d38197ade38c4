//! The page: the environment, what the policy thinks and does, what came of it.

use super::keys::BINDINGS;
use super::raster;
use super::scene::{Scene, action_names};
use super::{Moment, Play, picture};
use crate::keys;
use crate::text;
use crate::theme::{Role, Theme};
use crate::widgets::put;
use rankdeck_proto::show::{EndKind, ScoreKind, ShownPolicy, ShownStep, Thought};
use rankdeck_types::words::{clean, count, plural};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// Cells of the column beside the picture.
const BESIDE: u16 = 34;
/// From this width on there is one.
const WIDE: u16 = 72;
/// Most actions that are listed.
const ACTIONS: usize = 18;

struct Places {
    header: Rect,
    state: Rect,
    picture: Rect,
    thought: Rect,
    returns: Rect,
    footer: Rect,
}

/// Where everything is: the thought beside the picture, or below it on a narrow screen.
fn places(area: Rect) -> Places {
    let line = |y: u16| Rect { y: area.y + y.min(area.height.saturating_sub(1)), height: 1, ..area };
    let middle = Rect { y: area.y + 3.min(area.height), height: area.height.saturating_sub(6), ..area };
    let (picture, thought) = halves(middle);
    Places {
        header: line(0),
        state: line(1),
        picture,
        thought,
        returns: line(area.height.saturating_sub(2)),
        footer: line(area.height.saturating_sub(1)),
    }
}

/// The environment, and what is thought of it.
fn halves(area: Rect) -> (Rect, Rect) {
    if area.width >= WIDE {
        return (
            Rect { x: area.x + 1, width: area.width - BESIDE - 2, ..area },
            Rect { x: area.x + area.width - BESIDE, width: BESIDE, ..area },
        );
    }
    let below = (area.height / 3).min(6);
    let above = area.height - below;
    (Rect { height: above, ..area }, Rect { y: area.y + above, height: below, ..area })
}

/// Where a picture of the environment goes, while there is one.
pub fn picture_area(play: &Play, area: Rect) -> Option<Rect> {
    let picture = play.step()?.picture.as_ref()?;
    let area = picture::area_for(picture.width, picture.height, places(area).picture);
    (!play.help && area.width > 0 && area.height > 0).then_some(area)
}

struct Pen<'a> {
    theme: &'a Theme,
}

impl Pen<'_> {
    fn s(&self, text: impl Into<String>, role: Role) -> Span<'static> {
        Span::styled(text.into(), self.theme.style(role))
    }

    fn dot(&self) -> Span<'static> {
        self.s(self.theme.glyphs.pick(" · ", " - "), Role::Dim)
    }
}

/// Draws what a policy sees, thinks and does at one step, the thought beside the environment where there is
/// room.
pub fn moment(play: &Play, theme: &Theme, buf: &mut Buffer, area: Rect) {
    let pen = Pen { theme };
    let (seen, beside) = halves(area);
    environment(&pen, buf, seen, play);
    if let (Some(policy), Some(step)) = (&play.policy, play.step()) {
        thought(&pen, buf, beside, policy, step);
    }
}

/// Draws a frame. Pure.
pub fn view(play: &Play, theme: &Theme, frame: &mut Frame<'_>) {
    let area = frame.area();
    let buf = frame.buffer_mut();
    let pen = Pen { theme };
    let places = places(area);
    if area.width < 20 || area.height < 8 {
        let said = text::cut("rankdeck: too small; q quits", area.width.into(), theme.glyphs);
        put(buf, area, 0, Line::from(pen.s(said, Role::Warn)));
        return;
    }
    header(&pen, buf, places.header, play);
    state(&pen, buf, places.state, play);
    environment(&pen, buf, places.picture, play);
    if let (Some(policy), Some(step)) = (&play.policy, play.step()) {
        thought(&pen, buf, places.thought, policy, step);
    }
    returns(&pen, buf, places.returns, play);
    footer(&pen, buf, places.footer);
    if play.help {
        let below = Rect { y: places.picture.y, height: area.height.saturating_sub(6), ..area };
        help(&pen, buf, below);
    }
}

fn header(pen: &Pen<'_>, buf: &mut Buffer, area: Rect, play: &Play) {
    let mut spans = vec![pen.s(" rankdeck play", Role::Accent), pen.s("  ", Role::Text)];
    spans.push(pen.s(clean(&play.name), Role::Strong));
    if let Some(ShownPolicy { algorithm, env_id, train_iter, env_step, .. }) = &play.policy {
        let facts = [
            (format!("{} on {}", clean(algorithm), clean(env_id)), Role::Text),
            (format!("iteration {}", count(*train_iter)), Role::Dim),
            (format!("{} steps", text::si(*env_step as f64)), Role::Dim),
        ];
        // What does not fit goes whole.
        let mut room = usize::from(area.width).saturating_sub(spans.iter().map(Span::width).sum());
        for (fact, role) in facts {
            let wide = text::width(&fact) + pen.dot().width();
            if wide > room {
                break;
            }
            room -= wide;
            spans.extend([pen.dot(), pen.s(fact, role)]);
        }
    }
    put(buf, area, 0, Line::from(spans));
}

fn state(pen: &Pen<'_>, buf: &mut Buffer, area: Rect, play: &Play) {
    let glyphs = pen.theme.glyphs;
    let mut spans = vec![pen.s(" ", Role::Text)];
    let of = play.episodes.map_or(String::new(), |all| format!(" of {}", count(u64::from(all))));
    match play.moment() {
        Some(moment) => {
            spans.push(pen.s(format!("episode {}{of}", u64::from(moment.episode()) + 1), Role::Strong));
            spans.push(pen.dot());
            let (steps, gained) = match moment {
                Moment::Step(step) => (step.step + 1, step.episode_return),
                Moment::End(end) => (end.steps, end.episode_return),
            };
            spans.push(pen.s(format!("step {}", count(steps)), Role::Text));
            spans.push(pen.dot());
            spans.push(pen.s("return ", Role::Dim));
            spans.push(pen.s(text::value(gained), Role::Strong));
            match moment {
                Moment::Step(step) => {
                    spans.push(pen.dot());
                    spans.push(pen.s(format!("reward {}", text::value(step.reward)), Role::Dim));
                }
                Moment::End(end) => {
                    let said = match end.end {
                        EndKind::Terminated => "it is over",
                        EndKind::Truncated => "the time limit",
                        EndKind::Cut => "eval.max_steps",
                    };
                    spans.push(pen.dot());
                    spans.push(pen.s(said, Role::Warn));
                }
            }
        }
        None if play.over.is_none() => {
            spans.push(pen.s("the policy and its environment are made", Role::Dim))
        }
        None => {}
    }
    let taken: usize = spans.iter().map(Span::width).sum();
    put(buf, area, 0, Line::from(spans));
    let pace = match (&play.over, play.is_done(), play.paused) {
        (Some(Err(_)), _, _) => (glyphs.pick("✗ failed", "failed"), Role::Bad),
        (_, true, _) => (glyphs.pick("■ all played", "all played"), Role::Good),
        (_, _, true) => (glyphs.pick("⏸ held", "held"), Role::Warn),
        (_, _, false) => ("", Role::Dim),
    };
    let mut right = vec![pen.s(format!("{} steps/s", play.speed()), Role::Dim)];
    if !pace.0.is_empty() {
        right.insert(0, pen.s(format!("{}  ", pace.0), pace.1));
    }
    right.push(pen.s(" ", Role::Text));
    crate::widgets::put_right(buf, area, 0, taken + 1, right);
}

fn environment(pen: &Pen<'_>, buf: &mut Buffer, area: Rect, play: &Play) {
    if let Some(Err(why)) = &play.over
        && play.moment().is_none()
    {
        let lines = why.lines().flat_map(|line| text::wrap(&clean(line), usize::from(area.width)));
        for (row, line) in lines.enumerate() {
            put(buf, area, row, Line::from(pen.s(line, Role::Bad)));
        }
        return;
    }
    let Some(step) = play.step() else { return };
    let scene = play.policy.as_ref().and_then(|policy| Scene::of(&policy.env_id));
    let (seen, action) = match play.moment() {
        Some(Moment::End(end)) => (&end.seen, &[][..]),
        _ => (&step.seen, step.action.as_slice()),
    };
    if let Some(canvas) = scene.and_then(|scene| scene.draw(seen, action, area, pen.theme.glyphs)) {
        raster::draw(pen.theme, buf, area, &canvas.raster);
        return;
    }
    match step.picture.as_ref().and_then(|picture| Some((picture, picture.rgb()?))) {
        Some(_) if play.drawn_apart => {}
        Some((shown, pixels)) => {
            let area = picture::area_for(shown.width, shown.height, area);
            let sides = (shown.width as usize, shown.height as usize);
            picture::draw(pen.theme, play.colours, buf, area, &pixels, sides);
        }
        None => numbers(pen, buf, area, seen),
    }
}

/// An observation that nobody knows how to draw.
fn numbers(pen: &Pen<'_>, buf: &mut Buffer, area: Rect, seen: &[f32]) {
    if seen.is_empty() {
        put(buf, area, 1, Line::from(pen.s("  this environment has no picture", Role::Dim)));
        return;
    }
    let columns = usize::from(area.width / 22).max(1);
    put(buf, area, 0, Line::from(pen.s("observation", Role::Dim)));
    for (i, number) in seen.iter().enumerate() {
        let (row, column) = (i / columns + 1, i % columns);
        let left = area.x + (column * 22) as u16;
        let place = Rect { x: left, width: 21.min(area.width - (column * 22) as u16), ..area };
        let line = vec![
            pen.s(format!("{i:>3} "), Role::Dim),
            pen.s(format!("{:>12}", text::value(f64::from(*number))), Role::Text),
        ];
        put(buf, place, row, Line::from(line));
    }
}

fn thought(pen: &Pen<'_>, buf: &mut Buffer, area: Rect, policy: &ShownPolicy, step: &ShownStep) {
    let silent = Thought::default();
    let thought = step.thought.as_ref().unwrap_or(&silent);
    let mut row = 0;
    let mut say = |buf: &mut Buffer, line: Vec<Span<'static>>| {
        put(buf, area, row, Line::from(line));
        row += 1;
    };
    if let Some(value) = thought.value {
        let label = if thought.kind == ScoreKind::Q { "best Q" } else { "value" };
        say(
            buf,
            vec![pen.s(format!("{label} "), Role::Dim), pen.s(text::value(f64::from(value)), Role::Strong)],
        );
    }
    if policy.bounds.is_empty() {
        let label = match thought.kind {
            ScoreKind::Probability => "action: probability",
            ScoreKind::Q => "action: Q",
            ScoreKind::Mean => "action: mean",
        };
        say(buf, vec![pen.s(label, Role::Dim)]);
        discrete(pen, buf, policy, thought, step, &mut say);
    } else {
        say(buf, vec![pen.s("action", Role::Dim)]);
        for (i, (part, [low, high])) in step.action.iter().zip(&policy.bounds).take(ACTIONS).enumerate() {
            let share = (f64::from(*part) - f64::from(*low)) / (f64::from(*high) - f64::from(*low)).max(1e-9);
            let bar = slider(pen, share);
            say(
                buf,
                vec![
                    pen.s(format!("{i:>2} "), Role::Dim),
                    pen.s(format!("{:>9} ", text::value(f64::from(*part))), Role::Strong),
                    pen.s(bar, Role::Good),
                ],
            );
        }
    }
    say(buf, Vec::new());
    let scene = Scene::of(&policy.env_id).is_some() || step.picture.is_some();
    for (i, number) in step.seen.iter().enumerate().filter(|_| scene).take(12) {
        let value = format!("{:>10}", text::value(f64::from(*number)));
        say(buf, vec![pen.s(format!("sees {i:>2} "), Role::Dim), pen.s(value, Role::Text)]);
    }
}

/// A row per action: its name, its number, a bar; the chosen one stands out.
fn discrete(
    pen: &Pen<'_>,
    buf: &mut Buffer,
    policy: &ShownPolicy,
    thought: &Thought,
    step: &ShownStep,
    say: &mut dyn FnMut(&mut Buffer, Vec<Span<'static>>),
) {
    let glyphs = pen.theme.glyphs;
    let chosen = step.action.first().map_or(usize::MAX, |action| *action as usize);
    let names = action_names(&policy.env_id, thought.scores.len());
    let name = |i: usize| names.get(i).map_or_else(|| i.to_string(), |name| (*name).to_owned());
    let (low, high) = match thought.kind {
        ScoreKind::Probability => (0.0, 1.0),
        ScoreKind::Q | ScoreKind::Mean => {
            thought.scores.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), score| {
                (low.min(*score), high.max(*score))
            })
        }
    };
    for (i, score) in thought.scores.iter().enumerate().take(ACTIONS) {
        let role = if i == chosen { Role::Good } else { Role::Dim };
        let share = (score - low) / (high - low).max(1e-9);
        let cells = (f64::from(share.clamp(0.0, 1.0)) * 8.0).round() as usize;
        let mark = if i == chosen { glyphs.pick("▸", ">") } else { " " };
        let number = match thought.kind {
            ScoreKind::Probability => format!("{:>6.1}%", score * 100.0),
            ScoreKind::Q | ScoreKind::Mean => format!("{:>7}", text::value(f64::from(*score))),
        };
        say(
            buf,
            vec![
                pen.s(format!("{mark} "), Role::Good),
                pen.s(text::left(&name(i), 13, glyphs), role),
                pen.s(number, role),
                pen.s(format!(" {}", glyphs.pick("█", "#").repeat(cells)), role),
            ],
        );
    }
    if thought.scores.len() > ACTIONS {
        say(buf, vec![pen.s(format!("  and {} more", thought.scores.len() - ACTIONS), Role::Dim)]);
    }
    if thought.scores.is_empty() && chosen != usize::MAX {
        say(buf, vec![pen.s(format!("  {}", name(chosen)), Role::Good)]);
    }
}

/// Where between its bounds a number is.
fn slider(pen: &Pen<'_>, share: f64) -> String {
    const CELLS: usize = 15;
    let glyphs = pen.theme.glyphs;
    let at = (share.clamp(0.0, 1.0) * (CELLS - 1) as f64).round() as usize;
    (0..CELLS).map(|i| if i == at { glyphs.pick("●", "o") } else { glyphs.pick("─", "-") }).collect()
}

fn returns(pen: &Pen<'_>, buf: &mut Buffer, area: Rect, play: &Play) {
    if let (Some(Err(why)), Some(_)) = (&play.over, play.moment()) {
        let said =
            text::cut(&clean(why.lines().next().unwrap_or_default()), area.width.into(), pen.theme.glyphs);
        put(buf, area, 0, Line::from(pen.s(format!(" {said}"), Role::Bad)));
        return;
    }
    let count = play.returns.len();
    if count == 0 {
        return;
    }
    let mean = play.returns.iter().map(|(gained, _)| gained).sum::<f64>() / count as f64;
    let mut spans = vec![
        pen.s(format!(" {} played", plural(count, "episode")), Role::Text),
        pen.dot(),
        pen.s("mean return ", Role::Dim),
        pen.s(text::value(mean), Role::Strong),
        pen.dot(),
        pen.s("the latest ", Role::Dim),
    ];
    for (gained, _) in play.returns.iter().rev().take(12) {
        spans.push(pen.s(format!("{} ", text::value(*gained)), Role::Text));
    }
    put(buf, area, 0, Line::from(spans));
}

fn footer(pen: &Pen<'_>, buf: &mut Buffer, area: Rect) {
    let mut spans = vec![pen.s(" ", Role::Text)];
    for binding in BINDINGS.iter().filter(|binding| !binding.short.is_empty()) {
        spans.push(pen.s(keys::name(binding.keys[0], pen.theme.glyphs), Role::Accent));
        spans.push(pen.s(format!(" {}  ", binding.short), Role::Dim));
    }
    put(buf, area, 0, Line::from(spans));
}

fn help(pen: &Pen<'_>, buf: &mut Buffer, area: Rect) {
    for y in area.top()..area.bottom() {
        for x in area.left()..area.right() {
            if let Some(cell) = buf.cell_mut((x, y)) {
                cell.reset();
            }
        }
    }
    for (row, binding) in BINDINGS.iter().enumerate() {
        let names: Vec<String> = binding.keys.iter().map(|key| keys::name(*key, pen.theme.glyphs)).collect();
        let line = vec![
            pen.s(format!(" {}", text::left(&names.join(" "), 14, pen.theme.glyphs)), Role::Accent),
            pen.s(binding.long, Role::Text),
        ];
        put(buf, area, row, Line::from(line));
    }
}
