//! The Fleet page: hosts, their load and GPUs, with or without a run.

use super::{Binding, PageState, draw_item, enabled, no_launch};
use crate::home::model::{FleetHost, FreeSince, GpuTrack, Home};
use crate::home::overlays::processes::GpuProcesses;
use crate::home::{DrawCtx, HomeCommand, HomePage, HomeRequest, HomeView};
use crossterm::event::KeyCode;
use rankdeck_kit::keys::{c, k};
use rankdeck_kit::list::{ListPosition, Move};
use rankdeck_kit::text::NONE;
use rankdeck_kit::{Role, bindings, plot, put, text};
use rankdeck_proto::message::GpuSample;
use rankdeck_proto::process::GpuUser;
use rankdeck_proto::run_entry::HostSnapshot;
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use std::collections::BTreeSet;
use std::ops::Range;

/// State of the page of hosts.
#[derive(Debug, Clone, Default)]
pub struct FleetPage {
    pub list: ListPosition,
    /// Hosts to launch on; empty: all.
    pub chosen: BTreeSet<String>,
}

/// What a key of this page can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FleetCommand {
    /// Show the runs of the host.
    ShowRuns,
    /// Choose the host for launches.
    Choose,
    /// List the processes on its GPUs.
    Processes,
}

const HERE: &[HomePage] = &[HomePage::Fleet];

const fn fleet(command: FleetCommand) -> HomeCommand {
    HomeCommand::Fleet(command)
}

#[rustfmt::skip]
pub(in crate::home) const KEYS: &[Binding] = bindings![
    HERE, fleet(FleetCommand::ShowRuns), [k(KeyCode::Enter)], 1, "its runs", "Show the runs of this host", enabled;
    HERE, fleet(FleetCommand::Choose), [c(' ')], 1, "choose", "Launch on chosen hosts only", enabled;
    HERE, fleet(FleetCommand::Processes), [c('p')], 1, "processes", "List GPU processes (environment variables, signals)", no_host;
    HERE, HomeCommand::Launch, [c('n')], 1, "launch", "Launch an experiment on the chosen hosts", no_launch;
];

fn no_host(home: &Home, view: &HomeView) -> Option<&'static str> {
    let is_selected = home.hosts.iter().any(|host| view.fleet.list.is_selected(&host.name));
    (!is_selected).then_some("no host selected")
}

/// Number of announced pauses after which a snapshot is late.
const LATE: u64 = 3;
/// Maximum width of a host name.
const NAME: usize = 24;

impl FleetPage {
    /// Returns the hosts that a launch excludes, because others are chosen.
    pub(in crate::home) fn excluded<'a>(&'a self, home: &'a Home) -> impl Iterator<Item = &'a str> {
        let names = home.hosts.iter().map(|host| host.name.as_str());
        names.filter(|name| !self.chosen.is_empty() && !self.chosen.contains(*name))
    }

    /// Runs a command of this page.
    pub(in crate::home) fn perform(&mut self, home: &Home, command: FleetCommand) -> Vec<HomeRequest> {
        let host = self.list.selected.clone();
        match command {
            FleetCommand::ShowRuns => {
                vec![HomeRequest::FilterRuns(host.unwrap_or_default()), HomeRequest::Go(HomePage::Runs)]
            }
            FleetCommand::Choose => {
                let Some(host) = host else { return Vec::new() };
                if !self.chosen.remove(&host) {
                    self.chosen.insert(host);
                }
                self.step(home, Move::By(1));
                Vec::new()
            }
            FleetCommand::Processes => {
                vec![HomeRequest::Open(GpuProcesses::new(host.unwrap_or_default()).into())]
            }
        }
    }
}

/// Number of rows of a host: itself, its error, its GPUs.
fn height(host: &FleetHost) -> usize {
    1 + host.gpus.len() + host.error.iter().len()
}

impl PageState for FleetPage {
    fn position(&self) -> &ListPosition {
        &self.list
    }

    fn position_mut(&mut self) -> &mut ListPosition {
        &mut self.list
    }

    fn names(&self, home: &Home) -> Vec<String> {
        home.hosts.iter().map(|host| host.name.clone()).collect()
    }

    fn list_area(&self, _: &Home, page: Rect) -> Rect {
        Rect { y: page.y + 1, height: page.height.saturating_sub(1), ..page }
    }

    fn selected_rows(&self, home: &Home) -> (Range<usize>, usize) {
        let at = self.list.index(&self.names(home)).unwrap_or(0);
        let start = home.hosts.iter().take(at).map(height).sum();
        let rows = home.hosts.get(at).map_or(1, height);
        (start..start + rows, home.hosts.iter().map(height).sum())
    }

    fn settle(&mut self, home: &Home) {
        let names = self.names(home);
        self.chosen.retain(|name| names.contains(name));
        self.list.settle(names);
    }

    fn open_command(&self) -> Option<HomeCommand> {
        Some(HomeCommand::Fleet(FleetCommand::ShowRuns))
    }

    fn draw(&self, home: &Home, cx: &DrawCtx<'_>, buf: &mut Buffer, page: Rect) {
        let list = self.list_area(home, page);
        if home.hosts.is_empty() {
            let error = home.error.clone();
            let (error, hint) = error.map_or(("no hosts".into(), String::new()), |e| (e.error, e.hint));
            let lines = [(error, Role::Bad), (hint, Role::Dim)];
            let inside = Rect { x: list.x + 2, width: list.width.saturating_sub(4), ..list };
            cx.paragraphs(buf, inside, &lines);
            return;
        }
        let name = home.hosts.iter().map(|host| text::width(&host.name)).max().unwrap_or(0).clamp(6, NAME);
        let wide = page.width >= 100;
        let head = format!(
            "  {}  {} {} {} {}   AGE  RUNS",
            cx.left("HOST", name),
            cx.left("CPU", if wide { 28 } else { 14 }),
            cx.right("LOAD", 6),
            cx.right("MEMORY", 16),
            cx.right("GPUS FREE", 10),
        );
        put(buf, page, 0, Line::from(cx.s(head, Role::Dim)));
        let mut row = 0;
        let rows = self.list.top..self.list.top + usize::from(list.height);
        for host in &home.hosts {
            let selected = self.list.is_selected(&host.name);
            let chosen = self.chosen.contains(&host.name);
            let mut lines = vec![host_line(cx, home, host, (selected, chosen), name, wide)];
            lines.extend(host.error.iter().map(|error| {
                let error = cx.cut(&error.with_hint(), usize::from(page.width).saturating_sub(6));
                Line::from(cx.s(format!("     {error}"), Role::Warn))
            }));
            lines.extend(host.gpus.iter().map(|track| gpu_line(cx, host, track, usize::from(page.width))));
            let lines: Vec<Line<'static>> =
                lines.into_iter().map(|line| fitted(cx, line, usize::from(page.width))).collect();
            for (at, line) in lines.into_iter().enumerate() {
                if rows.contains(&row) {
                    draw_item(cx, buf, list, row - rows.start, line, &host.name, selected && at == 0);
                }
                row += 1;
            }
        }
    }
}

/// Cuts the last part of a line that does not fit.
fn fitted(cx: &DrawCtx<'_>, mut line: Line<'static>, cells: usize) -> Line<'static> {
    if line.width() > cells
        && let Some(last) = line.spans.pop()
    {
        let room = cells.saturating_sub(line.width());
        line.spans.push(Span::styled(cx.cut(&last.content, room), last.style));
    }
    line
}

/// Tests whether the next snapshot is overdue.
fn is_late(host: &FleetHost, now: Timestamp) -> bool {
    let pause = host.snapshot.as_ref().map_or(0, |snapshot| snapshot.next_ms).max(1000);
    host.snapshot_at.is_some_and(|at| now.since(at) > pause * LATE)
}

fn host_line(
    cx: &DrawCtx<'_>,
    home: &Home,
    host: &FleetHost,
    (selected, chosen): (bool, bool),
    name: usize,
    wide: bool,
) -> Line<'static> {
    let late = is_late(host, cx.now) || host.error.is_some();
    let role = |role: Role| if late { Role::Dim } else { role };
    let mut spans = vec![
        cx.cursor(selected, chosen),
        cx.s(cx.left(&host.name, name), if selected { Role::Accent } else { Role::Strong }),
        Span::raw("  "),
    ];
    let Some(HostSnapshot { sample, .. }) = &host.snapshot else {
        let word = if host.error.is_some() { "unreachable" } else { "connecting ..." };
        spans.push(cx.s(word, if host.error.is_some() { Role::Bad } else { Role::Dim }));
        return Line::from(spans);
    };
    let share = f64::from(sample.cpu_percent) / 100.0;
    let fill = if late { cx.theme.dim } else { plot::load(cx.theme, share) };
    spans.extend(plot::bar(cx.theme, share, 6, fill));
    spans.push(cx.s(format!(" {:>3.0}%", sample.cpu_percent), role(Role::Text)));
    spans.push(cx.s(format!(" {:>2}", sample.cpu_count.min(999)), Role::Dim));
    if wide {
        let spark = plot::spark(host.cpu.iter().map(|v| f64::from(*v)), 13, 0.0, 100.0, cx.glyphs());
        spans.push(cx.s(format!(" {}", cx.left(&spark, 13)), Role::Dim));
    }
    spans.push(cx.s(format!(" {:>6.1}", sample.load1), role(Role::Text)));
    let memory = format!("{} of {}", words::bytes(sample.memory_used), words::bytes(sample.memory_total));
    spans.push(cx.s(format!(" {}", cx.right(&memory, 16)), role(Role::Text)));
    let (free, all) = host.free();
    let gpus = if all == 0 { NONE.to_owned() } else { format!("{free} of {all}") };
    let free_role = if free > 0 { role(Role::Good) } else { Role::Dim };
    spans.push(cx.s(format!(" {}", cx.right(&gpus, 10)), free_role));
    let seconds = host.snapshot_at.map_or(0, |at| cx.now.since(at) / 1000);
    let age = if seconds < 60 { format!("{seconds}s") } else { words::duration(seconds as f64) };
    spans.push(cx.s(format!(" {age:>5}"), if late { Role::Warn } else { Role::Dim }));
    let runs: Vec<&str> = home.runs_on(&host.name).map(|row| row.run.as_str()).collect();
    let runs = if runs.is_empty() { "idle".to_owned() } else { runs.join(" ") };
    spans.push(cx.s(format!("  {}", cx.cut(&runs, 80)), role(Role::Text)));
    Line::from(spans)
}

fn gpu_line(cx: &DrawCtx<'_>, host: &FleetHost, track: &GpuTrack, cells: usize) -> Line<'static> {
    let late = is_late(host, cx.now) || host.error.is_some();
    let role = |role: Role| if late { Role::Dim } else { role };
    let snapshot = host.snapshot.as_ref();
    let gpus = snapshot.map_or(&[][..], |snapshot| &snapshot.sample.gpus);
    let Some(gpu) = gpus.iter().find(|gpu| gpu.index == track.index) else {
        return Line::default();
    };
    let mut spans = vec![cx.s(format!("    {:>2} ", gpu.index), Role::Dim)];
    if gpu.lost {
        spans.push(cx.s("lost by the driver", Role::Bad));
        return Line::from(spans);
    }
    if cells >= 120 {
        spans.push(cx.s(cx.left(gpu.name.trim_start_matches("NVIDIA "), 18), Role::Dim));
        spans.push(Span::raw(" "));
    }
    let room = if cells >= 160 { 24 } else { 8 };
    let history = track.history.iter().map(|value| f64::from(*value));
    let spark = plot::spark(history, room, 0.0, 100.0, cx.glyphs());
    spans.push(cx.s(cx.left(&spark, room), role(Role::Accent)));
    let or_none = |value: Option<String>| value.unwrap_or_else(|| NONE.into());
    let percent = or_none(gpu.utilization.map(|percent| format!("{percent}%")));
    spans.push(cx.s(format!(" {percent:>4}"), role(Role::Text)));
    let memory = match gpu.memory_total {
        // The driver does not report it.
        0 => NONE.to_owned(),
        total => format!("{} of {}", words::bytes(gpu.memory_used), words::bytes(total)),
    };
    spans.push(cx.s(format!(" {}", cx.right(&memory, 20)), role(Role::Text)));
    let power = or_none(gpu.power_w.map(|watts| format!("{watts:.0}W")));
    let degrees = cx.glyphs().pick("°C", "C");
    let heat = or_none(gpu.temperature_c.map(|celsius| format!("{celsius}{degrees}")));
    spans.push(cx.s(format!(" {power:>5} {heat:>5}"), role(Role::Text)));
    if cells >= 100 {
        let clock = |mhz: Option<u32>| mhz.map_or_else(|| NONE.into(), |mhz| mhz.to_string());
        let clocks = format!("{}/{}", clock(gpu.sm_clock_mhz), clock(gpu.memory_clock_mhz));
        spans.push(cx.s(format!(" {} MHz", cx.right(&clocks, 9)), role(Role::Dim)));
    }
    if !gpu.throttle.is_empty() {
        spans.push(cx.s(format!("  {}", gpu.throttle.join(", ")), role(Role::Warn)));
    }
    if !gpu.xids.is_empty() {
        let xids: Vec<String> = gpu.xids.iter().map(u64::to_string).collect();
        spans.push(cx.s(format!("  Xid {}", xids.join(" ")), Role::Bad));
    }
    spans.push(Span::raw("  "));
    match track.free {
        Some(since) => spans.push(cx.s(free_text(since, cx.now), role(Role::Good))),
        None => {
            let known = snapshot.map_or(&[][..], |snapshot| &snapshot.users);
            spans.push(cx.s(users(gpu, known), role(Role::Text)));
        }
    }
    Line::from(spans)
}

/// `free for 12m`, or `12m+` if it may have been free for longer.
fn free_text(since: FreeSince, now: Timestamp) -> String {
    let seconds = now.since(since.at) / 1000;
    let long = match seconds {
        s if s < 60 => format!("{s}s"),
        s if s < 3600 => format!("{}m", s / 60),
        s => format!("{}h {:02}m", s / 3600, s / 60 % 60),
    };
    if since.or_longer { format!("free for {long}+") } else { format!("free for {long}") }
}

/// Returns the users of a GPU: user, pid, memory, run or command.
fn users(gpu: &GpuSample, known: &[GpuUser]) -> String {
    if gpu.processes.is_empty() {
        return "in use; processes not visible".into();
    }
    let users = gpu.processes.iter().map(|(pid, bytes)| {
        let user = known.iter().find(|user| user.pid == *pid);
        let name = user.map_or("?", |user| user.user.as_str());
        let what = user.map_or("", |user| user.run.as_deref().unwrap_or(&user.command));
        format!("{name} {pid} {} {what}", words::bytes(*bytes))
    });
    users.collect::<Vec<_>>().join("; ")
}
