//! The Hosts page: links, agents, CPU, memory, GPUs, clock, and the age of the last message. Before ranks
//! exist, the overview shows each host's connection to its agent, with progress, errors and what helps.

use crate::run::action::{Request, ScreenAction};
use crate::run::command::ScreenCommand;
use crate::run::geometry::{Geometry, Pane};
use crate::run::pages::{Page, PageCx, PageDrawCtx, step};
use crate::run::reasons::*;
use crate::run::{RunScreen, ranks, staleness};
use crossterm::event::KeyCode;
use rankdeck_core::model::{HostModel, Model, RankModel};
use rankdeck_kit::keys::{Binding, c, k};
use rankdeck_kit::list::scrolled_to;
use rankdeck_kit::{Glyphs, Role, bindings, fit, plot, put, put_lines, text, width};
use rankdeck_proto::message::{GpuInstance, GpuSample, HostSample};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{NodeRank, Timestamp};
use rankdeck_types::link_state::LinkState;
use rankdeck_types::{hidden, words};
use ratatui::buffer::Buffer;
use ratatui::layout::Position;
use ratatui::text::{Line, Span};

const HOSTS: &[Pane] = &[Pane::Hosts];

/// The keys.
#[rustfmt::skip]
pub static KEYS: &[Binding<RunScreen>] = bindings![
    HOSTS, ScreenCommand::Inspect, [k(KeyCode::Enter)], 4, "ranks", "Show this host's ranks", |model, view| no_ranks_yet(model, &view.geometry);
    HOSTS, ScreenCommand::Processes, [c('p')], 6, "processes", "List processes on this host and its GPUs", |model, view| no_query(view).or(no_host(model));
    HOSTS, ScreenCommand::Shell, [c('s')], 5, "shell", "Open a shell in the run directory on this host", no_shell;
];

fn no_ranks_yet(model: &Model, geo: &Geometry) -> Option<&'static str> {
    no_host(model).or(geo.connecting.then_some("no ranks started yet"))
}

/// The hosts page.
#[derive(Debug, Clone, Default)]
pub struct HostsPage {
    /// The host that is selected.
    pub selected: Option<NodeRank>,
    /// The first row shown.
    top: usize,
}

impl Page for HostsPage {
    fn draw(&self, ctx: &PageDrawCtx<'_>, buf: &mut Buffer) {
        match ctx.place.geo.connecting && !ctx.place.own_page {
            true => draw_connecting(ctx, buf),
            false => draw_hosts(self, ctx, buf),
        }
    }

    fn settle(&mut self, cx: &mut PageCx<'_>) {
        let hosts = &cx.model.hosts;
        if self.selected.is_none_or(|node| node.index() >= hosts.len()) {
            self.selected = hosts.first().map(|host| host.node_rank);
        }
        let rows = cx.place.rows();
        if rows > 0 {
            let (first, last, all) = rows_of(cx.model, self.selected);
            // Both ends of the block, the top one last so that it wins when the block is higher than the page.
            let top = scrolled_to(self.top, last, rows, all);
            self.top = scrolled_to(top, first, rows, all);
        }
    }

    fn scroll(&mut self, rows: i64, cx: &mut PageCx<'_>) {
        let hosts = &cx.model.hosts;
        let at = self.selected.map_or(0, |node| node.index());
        self.selected = hosts.get(step(at, rows, hosts.len())).map(|host| host.node_rank);
    }

    fn copy(&self, cx: &PageCx<'_>) -> String {
        let host = self.selected.and_then(|node| cx.model.hosts.get(node.index()));
        host.map_or(String::new(), |host| format!("{} (node_rank {})\n", host.name, host.node_rank))
    }

    fn perform(&mut self, command: ScreenCommand, cx: &mut PageCx<'_>) -> Option<Vec<Request>> {
        let request = match command {
            ScreenCommand::Inspect if cx.place.focused => {
                let host = self.selected.and_then(|node| cx.live.hosts.get(node.index()));
                host.map(|host| Request::ShowRanksOf(host.name.clone()))
            }
            ScreenCommand::Processes => self.selected.map(Request::ListProcesses),
            ScreenCommand::Shell if cx.place.focused => {
                Some(Request::Do(ScreenAction::Shell(self.selected?)))
            }
            _ => return None,
        };
        Some(request.into_iter().collect())
    }

    fn click(&mut self, at: Position, cx: &mut PageCx<'_>) -> Vec<Request> {
        let inner = cx.place.inner();
        let row = inner.contains(at).then(|| self.top + usize::from(at.y - inner.y));
        let Some(host) = row.and_then(|row| host_of_row(cx.model, row)) else { return Vec::new() };
        if self.selected == Some(host) && cx.place.own_page {
            return vec![Request::Command(ScreenCommand::Inspect)];
        }
        self.selected = Some(host);
        Vec::new()
    }
}

/// A host that has not started its agent by then gets a hint, in milliseconds.
const SLOW_MS: u64 = 3000;

/// Draws the page.
fn draw_connecting(ctx: &PageDrawCtx<'_>, buf: &mut Buffer) {
    let all = &ctx.model.hosts;
    let ready = all.iter().filter(|host| matches!(host.link, LinkState::Ready { .. })).count();
    let failed = all.iter().filter(|host| matches!(host.link, LinkState::Failed(_))).count();
    let mut info = vec![ctx.s(format!("{ready} of {} ready", all.len()), Role::Good)];
    if failed > 0 {
        info.push(ctx.s(format!("  {failed} failed"), Role::Bad));
    }
    let title = ctx.title("connecting", words::plural(all.len(), "host"));
    let inner = ctx.pane(buf, ctx.place.area(), title, info);
    let cells = usize::from(inner.width);
    let name = all.iter().map(|host| text::width(&host.name)).max().unwrap_or(4).clamp(4, 20);
    let head = format!("NODE  {}  {:<18}  AFTER", text::left("HOST", name, ctx.glyphs()), "LINK");
    let mut lines = vec![Line::from(ctx.s(head, Role::Dim))];
    // Hosts with problems first if not all fit: a page of healthy links does not help.
    let mut order: Vec<&HostModel> = all.iter().collect();
    if all.len() + 1 > usize::from(inner.height) {
        order.sort_by_key(|host| match host.link {
            LinkState::Failed(_) | LinkState::Asking { .. } => 0,
            LinkState::Lost { .. } => 1,
            LinkState::Ready { .. } => 3,
            _ => 2,
        });
    }
    for host in order {
        lines.push(Line::from(connecting_line(ctx, host, name, cells)));
        for (text, role) in trouble(ctx, host) {
            let parts = text::wrap(&text, cells.saturating_sub(name + 8)).into_iter().take(2);
            lines
                .extend(parts.map(|part| Line::from(ctx.s(format!("{}{part}", " ".repeat(name + 8)), role))));
        }
    }
    lines.extend(planned_ranks(ctx));
    put_lines(buf, inner, lines);
}

fn connecting_line(ctx: &PageDrawCtx<'_>, host: &HostModel, name: usize, cells: usize) -> Vec<Span<'static>> {
    let (word, role) = link(ctx, host);
    let age = words::duration_ms(ctx.now.since(host.link_since));
    let mut spans = vec![
        ctx.s(format!("{:>4}  ", host.node_rank), Role::Dim),
        ctx.s(text::left(&host.name, name, ctx.glyphs()), Role::Strong),
        Span::raw("  "),
        ctx.s(text::left(&word, 18, ctx.glyphs()), role),
        ctx.s(format!("  {}", text::left(&age, 7, ctx.glyphs())), Role::Dim),
    ];
    let taken = rankdeck_kit::width(&spans);
    match &host.link {
        LinkState::Uploading { what, done, total } => {
            let share = if *total == 0 { 0.0 } else { *done as f64 / *total as f64 };
            let bar = cells.saturating_sub(taken + 20).clamp(8, 24);
            spans.extend(plot::bar(ctx.theme, share, bar, ctx.theme.fill));
            spans.push(ctx.s(format!(" {:>3.0}%", (share * 100.0).floor().min(100.0)), Role::Strong));
            let file = what.rsplit('/').next().unwrap_or(what);
            let room = cells.saturating_sub(taken + bar + 5);
            let sizes = format!("  {}/{}", words::bytes(*done), words::bytes(*total));
            let named = format!("{sizes}  {file}");
            spans.push(
                ctx.s(if text::width(&named) <= room { named } else { ctx.cut(&sizes, room) }, Role::Dim),
            );
        }
        LinkState::Ready { probe } => {
            let gpus = if probe.gpu_count > 0 {
                format!(", {}", words::plural(probe.gpu_count as usize, "GPU"))
            } else {
                String::new()
            };
            let text = format!("{}{gpus}", words::plural(probe.cpu_count as usize, "core"));
            spans.push(ctx.s(ctx.cut(&text, cells.saturating_sub(taken)), Role::Text));
        }
        LinkState::Starting if ctx.now.since(host.link_since) >= SLOW_MS => {
            let text = "slow: check the login shell's startup files";
            spans.push(ctx.s(ctx.cut(text, cells.saturating_sub(taken)), Role::Warn));
        }
        _ => {}
    }
    spans
}

/// What will be launched, when that is known already.
fn planned_ranks(ctx: &PageDrawCtx<'_>) -> Vec<Line<'static>> {
    let Some(plan) = &ctx.model.plan else { return Vec::new() };
    let what = if plan.is_builtin() {
        "built-in trainer".to_string()
    } else {
        words::clean(&hidden::words(plan.experiment.launch.command.iter().map(String::as_str)).join(" "))
    };
    let hosts = words::plural(plan.hosts.len(), "host");
    let head = Line::from(vec![
        ctx.s("plan  ", Role::Dim),
        ctx.s(words::plural(plan.ranks.len(), "rank"), Role::Strong),
        ctx.s(format!(" on {hosts}, {}, {what}", plan.backend()), Role::Text),
    ]);
    let sizes = plan.sizes.iter().map(|size| {
        let (local, global) = (words::count(size.local), words::count(size.global));
        let text = format!("      {:<12} {local:>12} per rank {global:>14} in all", size.name);
        Line::from(ctx.s(text, Role::Dim))
    });
    [Line::default(), head].into_iter().chain(sizes).collect()
}

/// Milliseconds without a message after which a connected link is shown as silent.
const SILENT_MS: u64 = 10_000;
/// Processes of a GPU that are not ranks and are named; the others are counted.
const OTHERS: usize = 3;
/// Cells before the notes about a GPU.
const NOTES: usize = 13;

/// Sign, word and gravity of a link.
fn link(ctx: &PageDrawCtx<'_>, host: &HostModel) -> (String, Role) {
    let (sign, word, role) = link_words(host, ctx.now, ctx.glyphs());
    (format!("{sign} {word}"), role)
}

/// The state of a link in a word.
pub fn word(host: &HostModel, now: Timestamp) -> String {
    link_words(host, now, Glyphs::Ascii).1
}

fn link_words(host: &HostModel, now: Timestamp, glyphs: Glyphs) -> (&'static str, String, Role) {
    // A link may stand for a while although nothing comes through it.
    let silent = matches!(host.link, LinkState::Ready { .. })
        && host.stopped.is_none()
        && host.last_message_at.is_some_and(|at| now.since(at) >= SILENT_MS);
    if silent {
        return (glyphs.pick("▲", "!"), "silent".into(), Role::Warn);
    }
    let unreachable = matches!(
        host.link,
        LinkState::Lost { .. }
            | LinkState::Connecting { .. }
            | LinkState::Uploading { .. }
            | LinkState::Starting
    );
    if unreachable && host.last_message_at.is_some() {
        // After its first message, what matters is that it cannot be reached; which attempt is under way does not.
        return (glyphs.pick("▲", "!"), "unreachable".into(), Role::Warn);
    }
    match &host.link {
        LinkState::Idle => (glyphs.pick("○", "o"), "waiting".to_string(), Role::Dim),
        LinkState::Connecting { attempt } if *attempt > 1 => {
            (glyphs.pick("◐", "@"), format!("connecting ({attempt})"), Role::Warn)
        }
        LinkState::Connecting { .. } => (glyphs.pick("◐", "@"), "connecting".into(), Role::Accent),
        LinkState::Asking { .. } => (glyphs.pick("?", "?"), "needs input".into(), Role::Warn),
        LinkState::Uploading { .. } => (glyphs.pick("↑", "^"), "uploading".into(), Role::Accent),
        LinkState::Starting => (glyphs.pick("◐", "@"), "starting agent".into(), Role::Accent),
        LinkState::Ready { .. } => (glyphs.pick("●", "*"), "ready".into(), Role::Good),
        LinkState::Lost { .. } => (glyphs.pick("▲", "!"), "lost".into(), Role::Warn),
        LinkState::Failed(_) => (glyphs.pick("✗", "x"), "failed".into(), Role::Bad),
        LinkState::Closed => (glyphs.pick("■", "#"), "closed".into(), Role::Dim),
    }
}

/// Details of a link in trouble: text and severity per line.
fn trouble(ctx: &PageDrawCtx<'_>, host: &HostModel) -> Vec<(String, Role)> {
    match &host.link {
        LinkState::Failed(HintedError { error, hint }) => {
            let mut lines = vec![(error.clone(), Role::Bad)];
            if !hint.is_empty() {
                lines.push((format!("hint: {hint}"), Role::Accent));
            }
            lines
        }
        LinkState::Lost { reason, retry_ms } => {
            let left = (host.link_since.plus(*retry_ms)).since(ctx.now);
            let when =
                if left == 0 { "retrying".into() } else { format!("retry in {}", words::duration_ms(left)) };
            vec![(format!("{when}; {reason}"), Role::Warn)]
        }
        _ => Vec::new(),
    }
}

fn block_rows(model: &Model, host: &HostModel) -> usize {
    let gpus = host.sample.iter().flat_map(|sample| &sample.gpus);
    let gpus: usize = gpus.map(|gpu| 1 + usize::from(!notes(model, host, gpu).is_empty())).sum();
    let trouble = match &host.link {
        LinkState::Failed(HintedError { hint, .. }) => 1 + usize::from(!hint.is_empty()),
        LinkState::Lost { .. } => 1,
        _ => 0,
    };
    let survivors = host.stopped.as_ref().map_or(0, |left| left.len().min(8));
    2 + gpus + trouble + survivors + 1
}

/// First and last row of the selected host's block, and rows of all blocks.
fn rows_of(model: &Model, selected: Option<NodeRank>) -> (usize, usize, usize) {
    let mut row = 0;
    let mut found = (0, 0);
    for host in &model.hosts {
        let rows = block_rows(model, host);
        if Some(host.node_rank) == selected {
            found = (row, row + rows.saturating_sub(2));
        }
        row += rows;
    }
    (found.0, found.1, row.saturating_sub(1))
}

/// The host of a row, counted from the first one of all blocks.
fn host_of_row(model: &Model, row: usize) -> Option<NodeRank> {
    let mut end = 0;
    model.hosts.iter().find_map(|host| {
        end += block_rows(model, host);
        (row < end).then_some(host.node_rank)
    })
}

/// Draws the pane.
fn draw_hosts(page: &HostsPage, ctx: &PageDrawCtx<'_>, buf: &mut Buffer) {
    let ready = ctx.model.hosts.iter().filter(|host| matches!(host.link, LinkState::Ready { .. })).count();
    let info = vec![ctx.s(format!("{ready} of {} ready", ctx.model.hosts.len()), Role::Dim)];
    let title = ctx.title("hosts", ctx.model.hosts.len().to_string());
    let inner = ctx.pane(buf, ctx.place.area(), title, info);
    let (top, end) = (page.top, page.top + usize::from(inner.height));
    let mut row = 0;
    for host in &ctx.model.hosts {
        let rows = block_rows(ctx.model, host);
        if row < end && row + rows > top {
            let is_selected = page.selected == Some(host.node_rank);
            let lines = block(ctx, host, is_selected, usize::from(inner.width));
            for (i, line) in lines.into_iter().enumerate() {
                if let Some(at) = (row + i).checked_sub(top) {
                    put(buf, inner, at, line);
                }
            }
        }
        row += rows;
    }
    if ctx.model.hosts.is_empty() {
        put(buf, inner, 0, Line::from(ctx.s("no hosts", Role::Dim)));
    }
}

/// Cells of the names and of the links' words, the same for all hosts so that meters stand below each other.
fn columns(ctx: &PageDrawCtx<'_>) -> (usize, usize) {
    let hosts = &ctx.model.hosts;
    let name = hosts.iter().map(|host| text::width(&host.name)).max().unwrap_or(0).clamp(4, 18);
    let word = hosts.iter().map(|host| text::width(&link(ctx, host).0)).max().unwrap_or(0).clamp(7, 18);
    (name, word)
}

fn block(ctx: &PageDrawCtx<'_>, host: &HostModel, is_selected: bool, cells: usize) -> Vec<Line<'static>> {
    let glyphs = ctx.glyphs();
    let mark = if is_selected { glyphs.pick("▸", ">") } else { " " };
    let (word, role) = link(ctx, host);
    let (name, words) = columns(ctx);
    let mut head = vec![
        ctx.s(mark, Role::Accent),
        ctx.s(format!("{:>3}  ", host.node_rank), Role::Dim),
        ctx.s(text::left(&host.name, name, glyphs), Role::Strong),
        Span::raw("  "),
        ctx.s(text::left(&word, words, glyphs), role),
        Span::raw("  "),
    ];
    let start = width(&head) + 4;
    let is_silent = !staleness::is_current(ctx.model, host, ctx.now);
    if let Some(sample) = &host.sample {
        head.extend(faded(ctx, machine(ctx, sample, cells, start), is_silent));
    }
    if let Some(why) = &host.excluded {
        head.push(ctx.s(format!("  excluded: {why}"), Role::Warn));
    }
    let mut lines = vec![Line::from(head), Line::from(about(ctx, host, cells))];
    for (text, role) in trouble(ctx, host) {
        lines.push(Line::from(ctx.s(format!("      {}", ctx.cut(&text, cells.saturating_sub(6))), role)));
    }
    for gpu in host.sample.iter().flat_map(|sample| &sample.gpus) {
        lines.push(Line::from(faded(ctx, gpu_line(ctx, host, gpu, cells, start), is_silent)));
        let notes = notes(ctx.model, host, gpu);
        if !notes.is_empty() {
            let groups = notes.into_iter().map(|(text, role)| vec![ctx.s(text, role)]).collect();
            let mut spans = vec![Span::raw(" ".repeat(NOTES))];
            spans.extend(fit(ctx, groups, cells.saturating_sub(NOTES)));
            lines.push(Line::from(faded(ctx, spans, is_silent)));
        }
    }
    for survivor in host.stopped.iter().flatten().take(8) {
        let text = format!(
            "      left: pid {} state {} {}",
            survivor.pid,
            survivor.state,
            words::clean(&survivor.command)
        );
        lines.push(Line::from(ctx.s(ctx.cut(&text, cells), Role::Bad)));
    }
    lines
}

/// Gauges of a silent host are of the past.
fn faded(ctx: &PageDrawCtx<'_>, spans: Vec<Span<'static>>, is_silent: bool) -> Vec<Span<'static>> {
    let fade = |span: Span<'static>| if is_silent { span.style(ctx.theme.dim) } else { span };
    spans.into_iter().map(fade).collect()
}

fn meter_cells(cells: usize) -> usize {
    if cells >= 110 { 16 } else { 6 }
}

fn share(used: u64, total: u64) -> f64 {
    if total == 0 { 0.0 } else { used as f64 / total as f64 }
}

/// Memory as a meter and a number, the number alone, or nothing: never a part of the number.
fn memory(ctx: &PageDrawCtx<'_>, share: f64, wide: usize, number: String, left: usize) -> Vec<Span<'static>> {
    let mut spans = vec![ctx.s("  mem ", Role::Dim)];
    spans.extend(plot::bar(ctx.theme, share, wide, plot::load(ctx.theme, share)));
    spans.push(ctx.s(number.clone(), Role::Text));
    let short = number.trim().to_string();
    match width(&spans) <= left {
        true => spans,
        false if short.len() + 6 <= left => vec![ctx.s("  mem ", Role::Dim), ctx.s(short, Role::Text)],
        false => Vec::new(),
    }
}

/// CPU and memory meters; the first bar begins at `start`.
fn machine(ctx: &PageDrawCtx<'_>, sample: &HostSample, cells: usize, start: usize) -> Vec<Span<'static>> {
    let wide = meter_cells(cells);
    let cpu = f64::from(sample.cpu_percent) / 100.0;
    let mem = share(sample.memory_used, sample.memory_total);
    let mut spans = vec![ctx.s("cpu ", Role::Dim)];
    spans.extend(plot::bar(ctx.theme, cpu, wide, ctx.theme.fill));
    spans.push(ctx.s(format!(" {:>3.0}%", sample.cpu_percent), Role::Text));
    let (used, total) = (words::bytes(sample.memory_used), words::bytes(sample.memory_total));
    let left = (cells + 4).saturating_sub(start + width(&spans));
    spans.extend(memory(ctx, mem, wide, format!(" {used:>5}/{total:<5}"), left));
    let more = format!("  {}, load {:.1}", words::plural(sample.cpu_count as usize, "core"), sample.load1);
    if start + width(&spans) + more.len() <= cells + 4 {
        spans.push(ctx.s(more, Role::Dim));
    }
    spans
}

/// Address, agent, clock, age.
fn about(ctx: &PageDrawCtx<'_>, host: &HostModel, cells: usize) -> Vec<Span<'static>> {
    let planned = ctx.model.plan.as_ref().and_then(|plan| plan.hosts.get(host.node_rank.index()));
    let mut groups = Vec::new();
    if let LinkState::Uploading { done, total, .. } = &host.link {
        let text = format!("{:.0}% of {}", (share(*done, *total) * 100.0).floor(), words::bytes(*total));
        groups.push(vec![ctx.s("sent ", Role::Dim), ctx.s(text, Role::Accent)]);
    }
    groups.push(match host.last_message_at {
        Some(at) => {
            let age = ctx.now.since(at);
            let role = if age > staleness::SILENT_MS { Role::Warn } else { Role::Text };
            vec![ctx.s("last message ", Role::Dim), ctx.s(format!("{} ago", words::duration_ms(age)), role)]
        }
        None => vec![ctx.s("no message yet", Role::Dim)],
    });
    if let (Some(plan), Some(planned)) = (&ctx.model.plan, planned) {
        groups.push(vec![ctx.s(plan.address(planned).to_owned(), Role::Text)]);
    }
    if let Some((pid, build)) = &host.agent {
        let build = ctx.cut(build, 18);
        groups.push(vec![ctx.s("agent ", Role::Dim), ctx.s(format!("{pid} {build}"), Role::Text)]);
        let offset = host.clock_offset_s;
        let role = if offset.abs() > 1.0 { Role::Warn } else { Role::Text };
        let sign = if offset < 0.0 { "-" } else { "+" };
        let size = words::duration(offset.abs());
        let size = if offset.abs() < 1.0 { format!("{:.0}ms", offset.abs() * 1000.0) } else { size };
        groups.push(vec![ctx.s("clock ", Role::Dim), ctx.s(format!("{sign}{size}"), role)]);
    }
    if let Some(skipped) = host.sample.as_ref().map(|sample| sample.dropped).filter(|skipped| *skipped > 0) {
        let text = format!("{} samples and lines dropped", text::count_in(skipped, 9));
        groups.push(vec![ctx.s(text, Role::Dim)]);
    }
    if let Some(probe) = &host.probe {
        let trainer = if probe.trainer.is_some() { "trainer found" } else { "no trainer" };
        groups.push(vec![ctx.s(trainer, Role::Dim)]);
    }
    if let Some(left) = &host.stopped {
        groups.push(if left.is_empty() {
            vec![ctx.s("stop verified", Role::Good)]
        } else {
            vec![ctx.s(format!("{} left", left.len()), Role::Bad)]
        });
    }
    let mut spans = vec![Span::raw("      ")];
    spans.extend(fit(ctx, groups, cells.saturating_sub(6)));
    spans
}

/// The memory of each MIG instance, all that the driver reports of it; `None` for a whole GPU.
pub fn instances(gpu: &GpuSample) -> Option<String> {
    let memory = |instance: &GpuInstance| {
        let (used, total) = (words::bytes(instance.memory_used), words::bytes(instance.memory_total));
        format!("{used}/{total}")
    };
    let all: Vec<String> = gpu.instances.iter().map(memory).collect();
    (!all.is_empty()).then(|| format!("MIG, usage not available: {}", all.join(", ")))
}

/// Notes about a GPU, the worst first: errors of the driver, and processes that are not ranks.
fn notes(model: &Model, host: &HostModel, gpu: &GpuSample) -> Vec<(String, Role)> {
    let mut notes = Vec::new();
    if gpu.lost {
        notes.push(("lost by the driver".to_owned(), Role::Bad));
    }
    if let [.., latest] = gpu.xids.as_slice() {
        let before = match gpu.xids.len() - 1 {
            0 => String::new(),
            before => format!(" and {before} before"),
        };
        notes.push((format!("Xid {latest}{before}"), Role::Bad));
    }
    if let Some(errors) = gpu.ecc_uncorrected.filter(|errors| *errors > 0) {
        notes.push((format!("{} uncorrected", words::plural(errors as usize, "memory error")), Role::Bad));
    }
    if let Some(errors) = gpu.ecc_corrected.filter(|errors| *errors > 0) {
        notes.push((format!("{} corrected", words::plural(errors as usize, "memory error")), Role::Warn));
    }
    notes.extend(instances(gpu).map(|words| (words, Role::Dim)));
    if let Some(errors) = gpu.nvlink_errors.filter(|errors| *errors > 0) {
        notes.push((words::plural(errors as usize, "NVLink error"), Role::Warn));
    }
    // What a rank has started uses its GPU for it.
    let is_of = |rank: &RankModel, pid: u32| {
        let mut children = rank.sample.iter().flat_map(|sample| &sample.signals.children);
        rank.pid == Some(pid) || children.any(|child| child.pid == pid)
    };
    let ours = ranks::on(model, host.node_rank);
    let no_rank = |(pid, _): &&(u32, u64)| !ours.iter().any(|rank| is_of(rank, *pid));
    let mut others: Vec<(u32, u64)> = gpu.processes.iter().filter(no_rank).copied().collect();
    others.sort_by_key(|(pid, bytes)| (std::cmp::Reverse(*bytes), *pid));
    let users = host.sample.iter().flat_map(|sample| &sample.users);
    let users: Vec<_> = users.filter(|user| !user.user.is_empty()).collect();
    notes.extend(others.iter().take(OTHERS).map(|(pid, bytes)| {
        let whose = users.iter().find(|user| user.pid == *pid);
        let whose = whose.map_or(String::new(), |user| format!(" of {}", words::clean(&user.user)));
        (format!("other pid {pid}{whose}: {}", words::bytes(*bytes)), Role::Warn)
    }));
    if others.len() > OTHERS {
        notes.push((format!("{} more", others.len() - OTHERS), Role::Warn));
    }
    notes
}

fn gpu_line(
    ctx: &PageDrawCtx<'_>,
    host: &HostModel,
    gpu: &GpuSample,
    cells: usize,
    start: usize,
) -> Vec<Span<'static>> {
    let wide = meter_cells(cells);
    let name = gpu.name.trim_start_matches("NVIDIA ").to_string();
    let label = format!("      gpu {:<2} ", gpu.index);
    let room = start.saturating_sub(label.len() + 1);
    let busy = gpu.utilization.map_or(0.0, |percent| f64::from(percent) / 100.0);
    let used = share(gpu.memory_used, gpu.memory_total);
    let mut spans = vec![
        ctx.s(label, Role::Dim),
        ctx.s(text::left(&name, room, ctx.glyphs()), Role::Text),
        Span::raw(" "),
    ];
    // Use over time has more to it than a bar of now, which the number replaces.
    match host.gpu_history.get(&gpu.index).filter(|history| history.len() > 1) {
        Some(history) => {
            let values = history.iter().map(|percent| f64::from(*percent));
            let spark = plot::spark(values, wide, 0.0, 100.0, ctx.glyphs());
            spans.push(ctx.s(text::left(&spark, wide, ctx.glyphs()), Role::Accent));
        }
        None => spans.extend(plot::bar(ctx.theme, busy, wide, ctx.theme.fill)),
    }
    let percent = gpu.utilization.map_or(text::NONE.to_string(), |percent| format!("{percent}%"));
    spans.push(ctx.s(format!(" {percent:>4}"), Role::Text));
    let left = cells.saturating_sub(width(&spans));
    let memory_words = match gpu.memory_total {
        // The driver does not report it.
        0 => format!(" {:>5}", text::NONE),
        total => format!(" {:>5}/{}", words::bytes(gpu.memory_used), words::bytes(total)),
    };
    spans.extend(memory(ctx, used, wide, memory_words, left));
    let mut groups = Vec::new();
    if !gpu.throttle.is_empty() {
        groups.push(vec![ctx.s(format!("throttle: {}", gpu.throttle.join(", ")), Role::Warn)]);
    }
    if let Some(watts) = gpu.power_w {
        let limit = gpu.power_limit_w.map_or(String::new(), |limit| format!("/{limit:.0}"));
        groups.push(vec![ctx.s(format!("{watts:.0}{limit}W"), Role::Text)]);
    }
    if let Some(degrees) = gpu.temperature_c {
        let role = if degrees >= 85 { Role::Warn } else { Role::Text };
        groups.push(vec![ctx.s(format!("{degrees}{}", ctx.glyphs().pick("°C", "C")), role)]);
    }
    if let Some(clock) = gpu.sm_clock_mhz {
        let memory = gpu.memory_clock_mhz.map_or(String::new(), |memory| format!("/{memory}"));
        groups.push(vec![ctx.s(format!("{clock}{memory}MHz"), Role::Text)]);
    }
    for (name, received, sent) in
        [("pcie", gpu.pcie_rx, gpu.pcie_tx), ("nvlink", gpu.nvlink_rx, gpu.nvlink_tx)]
    {
        if let (Some(received), Some(sent)) = (received, sent) {
            let (to, from) = (ctx.glyphs().pick("↓", "in "), ctx.glyphs().pick("↑", "out "));
            let text = format!("{to}{}/s {from}{}/s", words::bytes(received), words::bytes(sent));
            groups.push(vec![ctx.s(format!("{name} "), Role::Dim), ctx.s(text, Role::Text)]);
        }
    }
    let room = cells.saturating_sub(width(&spans) + 2);
    // The first that stays is one that fits.
    groups.retain(|group| width(group) <= room);
    spans.push(Span::raw("  "));
    spans.extend(fit(ctx, groups, room));
    spans
}
