//! A restart with changed config keys: the checkpoint to start from, the changes as typed, the resulting plan.

use crate::run::overlays::Overlay;
use crate::run::overlays::confirm::{self, ConfirmKind};
use crate::run::restart_draft::{FileAnswer, FileQuestion, OtherHosts, RestartDraft, RestartSource, origins};
use crate::run::time::time_of_day;
use crate::run::{Cx, DrawCtx, Handled, RunScreen, Target, ViewState};
use crossterm::event::{KeyCode, KeyEvent};
use rankdeck_core::event::Event;
use rankdeck_core::model::{Model, RunState};
use rankdeck_core::origin::{self, CodeChoice, CodeStanding, LATEST, PlannedCode, SCRATCH, Standing};
use rankdeck_kit::list::Move;
use rankdeck_kit::overlay::wheel_as_arrows;
use rankdeck_kit::{Component, Role, input, put_lines, text};
use rankdeck_types::code::Code;
use rankdeck_types::ids::Timestamp;
use rankdeck_types::{hidden, words};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

/// The form of a restart.
#[derive(Debug, Clone, PartialEq)]
pub struct RestartForm(pub Box<RestartDraft>);

impl Component<RunScreen> for RestartForm {
    fn on_key(&mut self, model: &Model, key: KeyEvent, cx: &mut Cx<'_>) -> Handled {
        let draft = &mut *self.0;
        let before = (draft.line.clone(), draft.selected);
        match (key.code, Move::of_key(key, false)) {
            (KeyCode::Esc, _) => return Handled::Close,
            (KeyCode::Enter, _) => {
                draft.retry();
                draft.is_waiting = draft.is_unchecked();
                if draft.is_waiting {
                    cx.state.toast(waiting_text(draft), Role::Dim, cx.now);
                } else {
                    ask(model, cx.state, order(model, draft), cx.now);
                }
                return Handled::Done;
            }
            (KeyCode::Tab, _) => draft.complete(),
            (KeyCode::BackTab, _) => draft.toggle_code(),
            (_, Some(Move::By(rows))) => {
                draft.selected = Move::By(rows).apply(draft.selected, origins(model).len());
            }
            _ => {
                input::edit(&mut draft.line, key);
            }
        }
        if (&draft.line, draft.selected) != (&before.0, before.1) {
            draft.is_waiting = false;
            draft.evaluate(model, cx.state.steering.changer);
        }
        Handled::Done
    }

    fn on_click(&mut self, _: &Model, target: &Target, _: &mut Cx<'_>) -> Handled {
        let Target::Row(row) = target else { return Handled::Ignored };
        self.0.selected = *row;
        Handled::Done
    }

    fn on_wheel(&mut self, model: &Model, rows: isize, cx: &mut Cx<'_>) -> Handled {
        wheel_as_arrows(self, model, rows, cx)
    }

    fn input(&mut self) -> Option<&mut String> {
        Some(&mut self.0.line)
    }

    fn draw(&self, model: &Model, view: &ViewState, cx: &DrawCtx<'_>, buf: &mut Buffer) {
        let draft = &*self.0;
        let glyphs = cx.glyphs();
        let sources: Vec<Vec<String>> =
            origins(model).iter().map(|origin| forms(model, origin, view.style.utc_offset_s)).collect();
        // Wide enough for the longest source, if the screen is.
        let longest = sources.iter().filter_map(|forms| forms.first()).map(|form| text::width(form)).max();
        let wanted = (longest.unwrap_or(0) + LABEL + 2).clamp(CELLS, MOST_CELLS);
        let cells = usize::from(cx.screen.width.saturating_sub(8)).min(wanted);
        let mut lines: Vec<Line<'static>> = Vec::new();
        let height = usize::from(cx.screen.height).saturating_sub(16).clamp(1, ROWS);
        let first = draft.selected.saturating_sub(height - 1);
        let room = cells.saturating_sub(LABEL + 2);
        // The line and the number of lines of each source.
        let mut places: Vec<(usize, u16, u16)> = Vec::new();
        for (i, forms) in sources.iter().enumerate().skip(first).take(height) {
            let is_selected = i == draft.selected;
            let role = if is_selected { Role::Accent } else { Role::Text };
            // The selected source has its whole text, on further lines if needed.
            let rows = match forms.first() {
                Some(whole) if is_selected && cx.screen.height >= ROOMY => {
                    text::wrap(&words::clean(whole), room)
                }
                _ => {
                    let fitting = forms.iter().find(|form| text::width(form) <= room).or(forms.last());
                    vec![cx.cut(fitting.map_or("", String::as_str), room)]
                }
            };
            places.push((i, lines.len() as u16, rows.len() as u16));
            for (at, row) in rows.into_iter().enumerate() {
                let label = if i == first && at == 0 { "from" } else { "" };
                let mark = if is_selected && at == 0 { glyphs.pick("▸", ">") } else { " " };
                lines.push(Line::from(vec![
                    cx.s(format!("{label:<LABEL$}"), Role::Dim),
                    cx.s(format!("{mark} {row}"), role),
                ]));
            }
        }
        let below = sources.len().saturating_sub(first + height);
        if below > 0 {
            lines.push(Line::from(
                cx.s(format!("{:<10}{below} more {}", "", glyphs.pick("↓", "v")), Role::Dim),
            ));
        }
        let hosts = draft.hosts.description();
        if !hosts.is_empty() {
            lines.extend(wrapped(cx, "hosts", &hosts, cells, Role::Accent));
        }
        if let Some(text) = draft.code_text() {
            let standing = draft.files.as_ref().and_then(|answer| answer.code.as_ref());
            let offered = standing.is_some_and(CodeStanding::is_offered);
            let (role, key) = match draft.choice {
                CodeChoice::New => (Role::Accent, "; shift-tab keeps the old code"),
                CodeChoice::Same if offered => (Role::Warn, "; shift-tab uses the new code"),
                CodeChoice::Same => (Role::Text, ""),
            };
            let key = if standing.is_some_and(|code| code.in_place) { "" } else { key };
            let text = text.strip_prefix("code: ").unwrap_or(&text);
            lines.extend(wrapped(cx, "code", &words::clean(&format!("{text}{key}")), cells, role));
        }
        lines.push(Line::default());
        let cursor = glyphs.pick("▏", "_");
        let typed = format!("{}{cursor}", words::clean(&hidden::typed(&draft.line)));
        lines.extend(wrapped(cx, "change", &typed, cells, Role::Strong));
        if draft.line.is_empty() {
            if let Some(edited) = draft.files.as_ref().and_then(|answer| answer.edited.as_ref()) {
                let hint = format!("{}; type the config key here to apply it", edited.description());
                lines.extend(wrapped(cx, "file", &hint, cells, Role::Warn));
            }
            let hint = "key=value, such as learn.learning_rate=1e-4; empty: no change";
            lines.extend(wrapped(cx, "", hint, cells, Role::Dim));
        } else if !draft.line.ends_with(' ') {
            let all = draft.suggestions();
            for (path, about) in all.iter().take(SUGGESTED) {
                let row = words_of(&format!("{path}  {about}"), cells.saturating_sub(10));
                lines.push(Line::from(cx.s(format!("{:<10}{row}", ""), Role::Dim)));
            }
            if all.len() > SUGGESTED {
                lines.push(Line::from(
                    cx.s(format!("{:<10}and {} more", "", all.len() - SUGGESTED), Role::Dim),
                ));
            }
        }
        lines.push(Line::default());
        let changed = draft.outcome.changed.iter().flat_map(|changed| &changed.differences);
        for (key, was, is) in changed {
            let row = format!("{key} = {is}  (was {was})");
            lines.extend(wrapped(cx, "", &row, cells, Role::Accent));
        }
        if draft.mistakes().next().is_none() {
            let plan = format!("{} {}", glyphs.tone(Role::Good), draft.outcome.plan);
            lines.extend(wrapped(cx, "plan", &plan, cells, Role::Good));
        }
        for mistake in draft.mistakes().take(3) {
            lines.extend(wrapped(cx, "", &words::clean(mistake), cells, Role::Bad).into_iter().take(3));
        }
        let size = (cells as u16, lines.len() as u16);
        let keys = format!(
            "{} checkpoint, tab completes, enter confirms, esc cancels",
            glyphs.pick("↑↓", "up down")
        );
        let inner = cx.popup(buf, size, Role::Warn, "restart with changes", &keys);
        for (source, line, rows) in places {
            let place = Rect { y: inner.y.saturating_add(line), height: rows, ..inner };
            cx.target(place.intersection(inner), Target::Row(source));
        }
        put_lines(buf, inner, lines);
    }

    fn hint(&self, _: &Model, _: &ViewState, _: &DrawCtx<'_>) -> String {
        "up/down checkpoint   key=value   tab completes   enter confirms   esc closes".into()
    }
}

/// What is shown while a restart waits for files.
pub fn waiting_text(draft: &RestartDraft) -> &'static str {
    match draft.choice {
        CodeChoice::Same => "reading the program's files ...",
        CodeChoice::New => "uploading the code ...",
    }
}

/// Most checkpoints at once.
const ROWS: usize = 8;
/// Cells of the form on a wide screen, and the most that long sources make of them.
const CELLS: usize = 90;
const MOST_CELLS: usize = 120;
/// From this height of the screen on, the selected source may have several lines.
const ROOMY: u16 = 30;
/// Cells of labels.
const LABEL: usize = 8;
/// Most completions at once.
const SUGGESTED: usize = 4;

/// The text of the question and the restart event, or why there is none.
type Order = Result<(Vec<String>, Event), String>;

/// Asks for confirmation, or shows why there is nothing to confirm.
fn ask(model: &Model, view: &mut ViewState, order: Order, now: Timestamp) {
    match order {
        Ok((text, event)) => view.open(confirm::changed(model, text, event)),
        Err(why) => view.toast(why, Role::Warn, now),
    }
}

/// The start of the line with the code choice.
const CODE_LINE: &str = "code: ";

/// What files are to be read for the open form, or for the open question about a restart.
pub fn question(model: &Model, view: &ViewState) -> Option<FileQuestion> {
    match view.overlay()? {
        Overlay::Restart(form) => form.0.question(),
        Overlay::Confirm(confirm) if confirm.kind == ConfirmKind::Restart => {
            let code = model.plan.as_ref().and_then(PlannedCode::of)?;
            // A question that a form has asked mentions it.
            let is_answered = confirm.text.iter().any(|line| line.starts_with(CODE_LINE));
            (!is_answered).then(|| FileQuestion { code: Some(code), ..FileQuestion::default() })
        }
        _ => None,
    }
}

/// Adds what files have shown about the code to an open question; returns the line.
pub(crate) fn add_code(view: &mut ViewState, answer: &FileAnswer) -> Option<String> {
    let Some(Overlay::Confirm(confirm)) = view.overlays.top_mut() else { return None };
    let is_answered = confirm.text.iter().any(|line| line.starts_with(CODE_LINE));
    let code = answer.code.as_ref().filter(|_| confirm.kind == ConfirmKind::Restart && !is_answered)?;
    let mut line = words::clean(&code.text(CodeChoice::Same));
    if code.is_offered() {
        line.push_str("; `restart code=new` uses the new code");
    }
    confirm.text.push(line.clone());
    Some(line)
}

/// Shows in the open form what files have shown; a restart that waited for that is asked about.
pub fn answer(model: &Model, view: &mut ViewState, answer: FileAnswer, now: Timestamp) {
    add_code(view, &answer);
    if let Some(order) = take_answer(model, view, answer) {
        ask(model, view, order, now);
    }
}

/// The same; returns the restart that waited for it.
pub(crate) fn take_answer(model: &Model, view: &mut ViewState, answer: FileAnswer) -> Option<Order> {
    let Some(Overlay::Restart(form)) = view.overlays.top_mut() else { return None };
    let draft = &mut *form.0;
    draft.files = Some(answer);
    let is_due = draft.is_waiting && !draft.is_unchecked();
    draft.is_waiting &= !is_due;
    is_due.then(|| order(model, draft))
}

/// What is asked about a draft.
pub fn order(model: &Model, draft: &RestartDraft) -> Order {
    if let Some(mistake) = draft.mistakes().next() {
        return Err(mistake.clone());
    }
    let origins = origins(model);
    let origin = origins.get(draft.selected).or(origins.last()).ok_or("no checkpoint")?;
    let next = draft.outcome.changed.as_ref().map(|changed| &*changed.experiment);
    let standing = match &model.plan {
        Some(plan) => Standing::of(model).before(plan, next),
        None => Standing::of(model),
    };
    let mut text = vec![standing.stops(), format!("It {}.", standing.effect(&origin.start()))];
    let OtherHosts { exclude, add } = draft.hosts.clone();
    let hosts = draft.hosts.description();
    if !hosts.is_empty() {
        text.push(format!("hosts: {hosts}"));
    }
    let changed = draft.outcome.changed.as_ref();
    for (key, was, is) in changed.iter().flat_map(|changed| &changed.differences) {
        text.push(format!("{key}: {was} -> {is}"));
    }
    text.push(format!("plan: {}", draft.outcome.plan));
    text.extend(draft.code_text().map(|line| words::clean(&line)));
    let mut experiment = changed.map(|changed| changed.experiment.clone());
    if let (Some(hash), Some(plan)) = (draft.new_code(), &model.plan) {
        let code = Some(Code::Pack(hash.clone()));
        if plan.experiment.launch.code != code {
            experiment.get_or_insert_with(|| Box::new(plan.experiment.clone())).launch.code = code;
        }
    }
    let shown = origin::shown(model);
    let event = Event::RestartRequested { from: origin.from.clone(), exclude, add, experiment, shown };
    Ok((text, event))
}

/// A restart source in one line, in shorter and shorter forms.
fn forms(model: &Model, origin: &RestartSource, utc_offset_s: i64) -> Vec<String> {
    let Some(checkpoint) = &origin.checkpoint else {
        return vec![match origin.name.as_str() {
            LATEST => format!("{LATEST}: saved by the stop"),
            SCRATCH => format!("{SCRATCH}: new weights, step 0"),
            name => name.to_owned(),
        }];
    };
    let time = origin.time.map_or(String::new(), |time| format!("  {}", time_of_day(time, utc_offset_s)));
    let mean = origin.mean_return.map_or(String::new(), |mean| format!("  return {}", words::fixed(mean, 1)));
    let newer = match origin.name.as_str() {
        "latest" if model.run.state != RunState::Over => "; the stop saves a newer one",
        _ => "",
    };
    let (iteration, step) = (checkpoint.train_iter, words::count(checkpoint.env_step));
    if !checkpoint.origin.is_reported() {
        let step = checkpoint.step().map(|step| format!("step {}", words::count(step)));
        let place = format!("{}: {}{}", origin.name, step.unwrap_or_default(), checkpoint.remark());
        return vec![format!("{place}{time}"), place];
    }
    let place = format!("{}: iteration {iteration}, step {step}", origin.name);
    vec![
        format!("{place}{time}{mean}{newer}"),
        format!("{place}{mean}{newer}"),
        format!("{}: step {step}{mean}{newer}", origin.name),
        format!("{place}{mean}"),
        place,
        format!("{}: step {step}", origin.name),
    ]
}

/// A text next to a label, wrapped.
fn wrapped(cx: &DrawCtx<'_>, label: &str, text: &str, cells: usize, role: Role) -> Vec<Line<'static>> {
    let parts = text::wrap(text, cells.saturating_sub(LABEL)).into_iter().enumerate();
    let line = |(at, part): (usize, String)| {
        let label = if at == 0 { label } else { "" };
        Line::from(vec![cx.s(format!("{label:<LABEL$}"), Role::Dim), cx.s(part, role)])
    };
    parts.map(line).collect()
}

/// As many words of a text as fit.
fn words_of(text: &str, cells: usize) -> String {
    text::wrap(text, cells).into_iter().next().unwrap_or_default()
}
