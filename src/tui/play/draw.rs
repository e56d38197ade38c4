//! Draws the environment, the policy's estimates and action, and the returns.

use super::scene::{EnvScene, action_names, draw_raster};
use super::{DrawCtx, KEYS, Play, PlayFrame, PlayUi};
use rankdeck_kit::keys::Keymap;
use rankdeck_kit::{Role, Theme, draw, overlay, put, put_right, text, width};
use rankdeck_proto::show::{EndKind, PolicyEstimate, ScoreKind, ShownPolicy, ShownStep};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words::{clean, count, plural};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// Width of the column next to the image.
const SIDE: u16 = 34;
/// Minimum width of the screen with that column.
const WIDE: u16 = 72;
/// Maximum number of listed actions.
const ACTIONS: usize = 18;

struct PlayAreas {
    header: Rect,
    state: Rect,
    image: Rect,
    estimates: Rect,
    returns: Rect,
    footer: Rect,
}

/// Returns the layout: estimates next to the image, or below it on a narrow screen.
fn places(area: Rect) -> PlayAreas {
    let line = |y: u16| Rect { y: area.y + y.min(area.height.saturating_sub(1)), height: 1, ..area };
    let middle = Rect { y: area.y + 3.min(area.height), height: area.height.saturating_sub(6), ..area };
    let (image, estimates) = halves(middle);
    PlayAreas {
        header: line(0),
        state: line(1),
        image,
        estimates,
        returns: line(area.height.saturating_sub(2)),
        footer: line(area.height.saturating_sub(1)),
    }
}

/// Returns the areas of the environment and of the estimates.
fn halves(area: Rect) -> (Rect, Rect) {
    if area.width >= WIDE {
        return (
            Rect { x: area.x + 1, width: area.width - SIDE - 2, ..area },
            Rect { x: area.x + area.width - SIDE, width: SIDE, ..area },
        );
    }
    let below = (area.height / 3).min(6);
    let above = area.height - below;
    (Rect { height: above, ..area }, Rect { y: area.y + above, height: below, ..area })
}

/// Returns the area of the environment's image, if there is one.
pub fn image_area(play: &Play, area: Rect) -> Option<Rect> {
    let picture = play.step()?.picture.as_ref()?;
    let area = draw::area_for(picture.width, picture.height, places(area).image);
    (play.overlays.is_empty() && area.width > 0 && area.height > 0).then_some(area)
}

/// Draws one step: the environment, and the policy's estimates and action.
pub fn moment(play: &Play, theme: &Theme, buf: &mut Buffer, area: Rect) {
    let cx = DrawCtx::new(theme, Timestamp(0), area);
    let (left, right) = halves(area);
    environment(&cx, buf, left, play);
    if let (Some(policy), Some(step)) = (&play.policy, play.step()) {
        estimates(&cx, buf, right, policy, step);
    }
}

/// Draws a frame. Pure.
pub fn view(play: &Play, theme: &Theme, frame: &mut Frame<'_>) {
    let area = frame.area();
    let buf = frame.buffer_mut();
    let places = places(area);
    let below = Rect { y: places.image.y, height: area.height.saturating_sub(6), ..area };
    let cx = DrawCtx::new(theme, Timestamp(0), below);
    if area.width < 20 || area.height < 8 {
        let text = cx.cut("rankdeck: screen too small; q quits", area.width.into());
        put(buf, area, 0, Line::from(cx.s(text, Role::Warn)));
        return;
    }
    header(&cx, buf, places.header, play);
    state(&cx, buf, places.state, play);
    environment(&cx, buf, places.image, play);
    if let (Some(policy), Some(step)) = (&play.policy, play.step()) {
        estimates(&cx, buf, places.estimates, policy, step);
    }
    returns(&cx, buf, places.returns, play);
    footer(&cx, buf, places.footer, play);
    overlay::draw::<PlayUi>(&play.overlays, &(), play, &cx, buf);
}

fn header(cx: &DrawCtx<'_>, buf: &mut Buffer, area: Rect, play: &Play) {
    let mut spans = vec![cx.s(" rankdeck play", Role::Accent), cx.s("  ", Role::Text)];
    spans.push(cx.s(clean(&play.name), Role::Strong));
    if let Some(ShownPolicy { algorithm, env_id, train_iter, env_step, .. }) = &play.policy {
        let facts = [
            (format!("{} on {}", clean(algorithm), clean(env_id)), Role::Text),
            (format!("iteration {}", count(*train_iter)), Role::Dim),
            (format!("{} steps", text::si(*env_step as f64)), Role::Dim),
        ];
        // A fact that does not fit is left out.
        let mut room = usize::from(area.width).saturating_sub(width(&spans));
        for (fact, role) in facts {
            let wide = text::width(&fact) + cx.dot().width();
            if wide > room {
                break;
            }
            room -= wide;
            spans.extend([cx.dot(), cx.s(fact, role)]);
        }
    }
    put(buf, area, 0, Line::from(spans));
}

fn state(cx: &DrawCtx<'_>, buf: &mut Buffer, area: Rect, play: &Play) {
    let glyphs = cx.glyphs();
    let mut spans = vec![cx.s(" ", Role::Text)];
    let of = play.episodes.map_or(String::new(), |all| format!(" of {}", count(u64::from(all))));
    match play.frame() {
        Some(frame) => {
            spans.push(cx.s(format!("episode {}{of}", u64::from(frame.episode()) + 1), Role::Strong));
            spans.push(cx.dot());
            let (steps, gained) = match frame {
                PlayFrame::Step(step) => (step.step + 1, step.episode_return),
                PlayFrame::End(end) => (end.steps, end.episode_return),
            };
            spans.push(cx.s(format!("step {}", count(steps)), Role::Text));
            spans.push(cx.dot());
            spans.push(cx.s("return ", Role::Dim));
            spans.push(cx.s(text::value(gained), Role::Strong));
            match frame {
                PlayFrame::Step(step) => {
                    spans.push(cx.dot());
                    spans.push(cx.s(format!("reward {}", text::value(step.reward)), Role::Dim));
                }
                PlayFrame::End(end) => {
                    let reason = match end.end {
                        EndKind::Terminated => "terminated",
                        EndKind::Truncated => "time limit",
                        EndKind::Cut => "eval.max_steps",
                    };
                    spans.push(cx.dot());
                    spans.push(cx.s(reason, Role::Warn));
                }
            }
        }
        None if play.end.is_none() => {
            spans.push(cx.s("loading policy and RL environment ...", Role::Dim));
        }
        None => {}
    }
    let taken = width(&spans);
    put(buf, area, 0, Line::from(spans));
    let status = match (&play.end, play.is_done(), play.paused) {
        (Some(Err(_)), _, _) => (glyphs.pick("✗ failed", "failed"), Role::Bad),
        (_, true, _) => (glyphs.pick("■ finished", "finished"), Role::Good),
        (_, _, true) => (glyphs.pick("⏸ paused", "paused"), Role::Warn),
        (_, _, false) => ("", Role::Dim),
    };
    let mut right = vec![cx.s(format!("{} steps/s", play.speed()), Role::Dim)];
    if !status.0.is_empty() {
        right.insert(0, cx.s(format!("{}  ", status.0), status.1));
    }
    right.push(cx.s(" ", Role::Text));
    put_right(buf, area, 0, taken + 1, right);
}

fn environment(cx: &DrawCtx<'_>, buf: &mut Buffer, area: Rect, play: &Play) {
    if let Some(Err(why)) = &play.end
        && play.frame().is_none()
    {
        let lines: Vec<_> = why.lines().map(|line| (line.to_owned(), Role::Bad)).collect();
        cx.paragraphs(buf, area, &lines);
        return;
    }
    let Some(step) = play.step() else { return };
    let scene = play.policy.as_ref().and_then(|policy| EnvScene::from_env(&policy.env_id));
    let (seen, action) = match play.frame() {
        Some(PlayFrame::End(end)) => (&end.seen, &[][..]),
        _ => (&step.seen, step.action.as_slice()),
    };
    if let Some(canvas) = scene.and_then(|scene| scene.draw(seen, action, area, cx.theme.glyphs)) {
        draw_raster(cx.theme, buf, area, &canvas.raster);
        return;
    }
    match step.picture.as_ref().and_then(|picture| Some((picture, picture.rgb()?))) {
        Some(_) if play.has_graphics => {}
        Some((shown, pixels)) => {
            let area = draw::area_for(shown.width, shown.height, area);
            let sides = (shown.width as usize, shown.height as usize);
            draw::draw_image(cx.theme, play.colors, buf, area, &pixels, sides);
        }
        None => numbers(cx, buf, area, seen),
    }
}

/// Draws the numbers of an observation.
fn numbers(cx: &DrawCtx<'_>, buf: &mut Buffer, area: Rect, seen: &[f32]) {
    if seen.is_empty() {
        put(buf, area, 1, Line::from(cx.s("  no image of this RL environment", Role::Dim)));
        return;
    }
    let columns = usize::from(area.width / 22).max(1);
    put(buf, area, 0, Line::from(cx.s("observation", Role::Dim)));
    for (i, number) in seen.iter().enumerate() {
        let (row, column) = (i / columns + 1, i % columns);
        let left = area.x + (column * 22) as u16;
        let place = Rect { x: left, width: 21.min(area.width - (column * 22) as u16), ..area };
        let line = vec![
            cx.s(format!("{i:>3} "), Role::Dim),
            cx.s(format!("{:>12}", text::value(f64::from(*number))), Role::Text),
        ];
        put(buf, place, row, Line::from(line));
    }
}

fn estimates(cx: &DrawCtx<'_>, buf: &mut Buffer, area: Rect, policy: &ShownPolicy, step: &ShownStep) {
    let none = PolicyEstimate::default();
    let thought = step.thought.as_ref().unwrap_or(&none);
    let mut row = 0;
    let mut push = |buf: &mut Buffer, line: Vec<Span<'static>>| {
        put(buf, area, row, Line::from(line));
        row += 1;
    };
    if let Some(value) = thought.value {
        let label = if thought.kind == ScoreKind::Q { "best Q" } else { "value" };
        push(
            buf,
            vec![cx.s(format!("{label} "), Role::Dim), cx.s(text::value(f64::from(value)), Role::Strong)],
        );
    }
    if policy.bounds.is_empty() {
        let label = match thought.kind {
            ScoreKind::Probability => "action: probability",
            ScoreKind::Q => "action: Q",
            ScoreKind::Mean => "action: mean",
        };
        push(buf, vec![cx.s(label, Role::Dim)]);
        discrete(cx, buf, policy, thought, step, &mut push);
    } else {
        push(buf, vec![cx.s("action", Role::Dim)]);
        for (i, (part, [low, high])) in step.action.iter().zip(&policy.bounds).take(ACTIONS).enumerate() {
            let share = (f64::from(*part) - f64::from(*low)) / (f64::from(*high) - f64::from(*low)).max(1e-9);
            let bar = slider(cx, share);
            push(
                buf,
                vec![
                    cx.s(format!("{i:>2} "), Role::Dim),
                    cx.s(format!("{:>9} ", text::value(f64::from(*part))), Role::Strong),
                    cx.s(bar, Role::Good),
                ],
            );
        }
    }
    push(buf, Vec::new());
    let scene = EnvScene::from_env(&policy.env_id).is_some() || step.picture.is_some();
    for (i, number) in step.seen.iter().enumerate().filter(|_| scene).take(12) {
        let value = format!("{:>10}", text::value(f64::from(*number)));
        push(buf, vec![cx.s(format!("obs {i:>2}  "), Role::Dim), cx.s(value, Role::Text)]);
    }
}

/// Draws a row per action: name, number and bar; the chosen one stands out.
fn discrete(
    cx: &DrawCtx<'_>,
    buf: &mut Buffer,
    policy: &ShownPolicy,
    thought: &PolicyEstimate,
    step: &ShownStep,
    push: &mut dyn FnMut(&mut Buffer, Vec<Span<'static>>),
) {
    let glyphs = cx.glyphs();
    let chosen = step.action.first().map_or(usize::MAX, |action| *action as usize);
    let names = action_names(&policy.env_id, thought.scores.len());
    // Part and choice of each score.
    let places: Vec<(usize, usize)> = match thought.parts.as_slice() {
        [] => (0..thought.scores.len()).map(|i| (0, i)).collect(),
        parts => {
            let place = |(part, size): (usize, &u32)| (0..*size as usize).map(move |choice| (part, choice));
            parts.iter().enumerate().flat_map(place).take(thought.scores.len()).collect()
        }
    };
    let is_chosen = |(part, choice): (usize, usize)| {
        step.action.get(part).is_some_and(|action| *action as usize == choice)
    };
    let name = |i: usize| match places.get(i) {
        Some((part, choice)) if !thought.parts.is_empty() => format!("{part}: {choice}"),
        _ => names.get(i).map_or_else(|| i.to_string(), |name| (*name).to_owned()),
    };
    let (low, high) = match thought.kind {
        ScoreKind::Probability => (0.0, 1.0),
        ScoreKind::Q | ScoreKind::Mean => {
            thought.scores.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), score| {
                (low.min(*score), high.max(*score))
            })
        }
    };
    for (i, score) in thought.scores.iter().enumerate().take(ACTIONS) {
        let is_chosen = places.get(i).is_some_and(|place| is_chosen(*place));
        let role = if is_chosen { Role::Good } else { Role::Dim };
        let share = (score - low) / (high - low).max(1e-9);
        let cells = (f64::from(share.clamp(0.0, 1.0)) * 8.0).round() as usize;
        let mark = if is_chosen { glyphs.pick("▸", ">") } else { " " };
        let number = match thought.kind {
            ScoreKind::Probability => format!("{:>6.1}%", score * 100.0),
            ScoreKind::Q | ScoreKind::Mean => format!("{:>7}", text::value(f64::from(*score))),
        };
        push(
            buf,
            vec![
                cx.s(format!("{mark} "), Role::Good),
                cx.s(text::left(&name(i), 13, glyphs), role),
                cx.s(number, role),
                cx.s(format!(" {}", glyphs.pick("█", "#").repeat(cells)), role),
            ],
        );
    }
    if thought.scores.len() > ACTIONS {
        push(buf, vec![cx.s(format!("  and {} more", thought.scores.len() - ACTIONS), Role::Dim)]);
    }
    if thought.scores.is_empty() && chosen != usize::MAX {
        let chosen = match step.action.as_slice() {
            [_] => name(chosen),
            parts => parts.iter().map(f32::to_string).collect::<Vec<_>>().join(", "),
        };
        push(buf, vec![cx.s(format!("  {chosen}"), Role::Good)]);
    }
}

/// Draws the position of a number between its bounds.
fn slider(cx: &DrawCtx<'_>, share: f64) -> String {
    const CELLS: usize = 15;
    let glyphs = cx.glyphs();
    let at = (share.clamp(0.0, 1.0) * (CELLS - 1) as f64).round() as usize;
    (0..CELLS).map(|i| if i == at { glyphs.pick("●", "o") } else { glyphs.pick("─", "-") }).collect()
}

fn returns(cx: &DrawCtx<'_>, buf: &mut Buffer, area: Rect, play: &Play) {
    if let (Some(Err(why)), Some(_)) = (&play.end, play.frame()) {
        let error = cx.cut(why.lines().next().unwrap_or_default(), area.width.into());
        put(buf, area, 0, Line::from(cx.s(format!(" {error}"), Role::Bad)));
        return;
    }
    let count = play.returns.len();
    if count == 0 {
        return;
    }
    let mean = play.returns.iter().map(|(gained, _)| gained).sum::<f64>() / count as f64;
    let mut spans = vec![
        cx.s(format!(" {} played", plural(count, "episode")), Role::Text),
        cx.dot(),
        cx.s("mean return ", Role::Dim),
        cx.s(text::value(mean), Role::Strong),
        cx.dot(),
        cx.s("latest ", Role::Dim),
    ];
    for (gained, _) in play.returns.iter().rev().take(12) {
        spans.push(cx.s(format!("{} ", text::value(*gained)), Role::Text));
    }
    put(buf, area, 0, Line::from(spans));
}

fn footer(cx: &DrawCtx<'_>, buf: &mut Buffer, area: Rect, play: &Play) {
    let cells = usize::from(area.width);
    let mut spans = vec![Span::raw(" ")];
    for (_, key, binding) in KEYS.footer_items(&(), play, ((), &Keymap::default()), cells, cx.glyphs()) {
        spans.push(cx.s(key, Role::Accent));
        spans.push(cx.s(format!(" {}  ", binding.short), Role::Dim));
    }
    put(buf, area, 0, Line::from(spans));
}
