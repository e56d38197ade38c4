//! The page of hosts: what each of them does, before and without any run.

use super::model::{FleetHost, FreeSince, GpuTrack, Home};
use super::pen::{Pen, paragraph};
use super::state::HomeView;
use crate::text::{self, NONE};
use crate::theme::Role;
use crate::widgets::{meter, put};
use rankdeck_proto::fleet::HostLook;
use rankdeck_proto::message::GpuSample;
use rankdeck_proto::process::GpuUser;
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// Older than this many announced pauses, a look is not of now.
const LATE: u64 = 3;
/// Widest name of a host.
const NAME: usize = 24;

/// Where the rows are.
pub(super) fn list_area(page: Rect) -> Rect {
    Rect { y: page.y + 1, height: page.height.saturating_sub(1), ..page }
}

/// Rows of a host: itself, its GPUs, what is wrong.
fn height(host: &FleetHost) -> usize {
    1 + host.gpus.len() + host.trouble.iter().len()
}

/// The first row of the selected host.
pub(super) fn row_of_selected(home: &Home, view: &HomeView) -> Option<usize> {
    let at = view.list(home).1?;
    Some(home.hosts.iter().take(at).map(height).sum())
}

pub(super) fn rows_of_selected(home: &Home, view: &HomeView) -> usize {
    view.selected_host(home).map_or(1, height)
}

/// The host in this row of the list.
pub(super) fn host_at(home: &Home, row: usize) -> Option<String> {
    let mut end = 0;
    home.hosts.iter().find_map(|host| {
        end += height(host);
        (row < end).then(|| host.name.clone())
    })
}

pub(super) fn draw(pen: &Pen<'_>, buf: &mut Buffer, page: Rect, home: &Home, view: &HomeView) {
    let list = list_area(page);
    if home.hosts.is_empty() {
        let trouble = home.trouble.clone();
        let (error, hint) = trouble.map_or(("no hosts".into(), String::new()), |t| (t.error, t.hint));
        let lines = [(error, Role::Bad), (hint, Role::Dim)];
        let inside = Rect { x: list.x + 2, width: list.width.saturating_sub(4), ..list };
        paragraph(pen, buf, inside, &lines, 0);
        return;
    }
    let name = home.hosts.iter().map(|host| text::width(&host.name)).max().unwrap_or(0).clamp(6, NAME);
    let wide = page.width >= 100;
    let head = format!(
        "  {}  {} {} {} {} HEARD  RUNS",
        pen.left("HOST", name),
        pen.left("CPU", if wide { 28 } else { 14 }),
        pen.right("LOAD", 6),
        pen.right("MEMORY", 16),
        pen.right("GPUS FREE", 10),
    );
    put(buf, page, 0, Line::from(pen.s(head, Role::Dim)));
    let mut row = 0;
    let rows = view.top[2]..view.top[2] + usize::from(list.height);
    for host in &home.hosts {
        let selected = view.host.as_ref() == Some(&host.name);
        let chosen = view.chosen.contains(&host.name);
        let mut lines = vec![host_line(pen, home, host, (selected, chosen), name, wide)];
        lines.extend(host.trouble.iter().map(|trouble| {
            let said = trouble.with_hint();
            Line::from(
                pen.s(
                    format!("     {}", pen.cut(&said, usize::from(page.width).saturating_sub(6))),
                    Role::Warn,
                ),
            )
        }));
        lines.extend(host.gpus.iter().map(|track| gpu_line(pen, host, track, usize::from(page.width))));
        let lines: Vec<Line<'static>> =
            lines.into_iter().map(|line| whole(pen, line, usize::from(page.width))).collect();
        for (at, line) in lines.into_iter().enumerate() {
            if rows.contains(&row) {
                pen.row(buf, list, row - rows.start, line, selected && at == 0);
            }
            row += 1;
        }
    }
}

/// A line whose last part says that it is cut where it does not fit.
fn whole(pen: &Pen<'_>, mut line: Line<'static>, cells: usize) -> Line<'static> {
    if line.width() > cells
        && let Some(last) = line.spans.pop()
    {
        let room = cells.saturating_sub(line.width());
        line.spans.push(Span::styled(pen.cut(&last.content, room), last.style));
    }
    line
}

/// It said when it would be heard again, and was not.
fn is_late(host: &FleetHost, now: Timestamp) -> bool {
    let pause = host.look.as_ref().map_or(0, |look| look.next_ms).max(1000);
    host.heard.is_some_and(|heard| now.since(heard) > pause * LATE)
}

fn host_line(
    pen: &Pen<'_>,
    home: &Home,
    host: &FleetHost,
    (selected, chosen): (bool, bool),
    name: usize,
    wide: bool,
) -> Line<'static> {
    let late = is_late(host, pen.now) || host.trouble.is_some();
    let role = |role: Role| if late { Role::Dim } else { role };
    let mut spans = vec![
        pen.cursor(selected, chosen),
        pen.s(pen.left(&host.name, name), if selected { Role::Accent } else { Role::Strong }),
        Span::raw("  "),
    ];
    let Some(look) = &host.look else {
        let word = if host.trouble.is_some() { "cannot be asked" } else { "asking ..." };
        spans.push(pen.s(word, if host.trouble.is_some() { Role::Bad } else { Role::Dim }));
        return Line::from(spans);
    };
    let HostLook { sample, .. } = look;
    let share = f64::from(sample.cpu_percent) / 100.0;
    let fill = if late { pen.theme.dim } else { meter::load(pen.theme, share) };
    spans.extend(meter::bar(pen.theme, share, 6, fill));
    spans.push(pen.s(format!(" {:>3.0}%", sample.cpu_percent), role(Role::Text)));
    spans.push(pen.s(format!(" {:>2}", sample.cpu_count.min(999)), Role::Dim));
    if wide {
        let spark = meter::spark(host.cpu.iter().map(|v| f64::from(*v)), 13, 0.0, 100.0, pen.theme.glyphs);
        spans.push(pen.s(format!(" {}", pen.left(&spark, 13)), Role::Dim));
    }
    spans.push(pen.s(format!(" {:>6.1}", sample.load1), role(Role::Text)));
    let memory = format!("{} of {}", words::bytes(sample.memory_used), words::bytes(sample.memory_total));
    spans.push(pen.s(format!(" {}", pen.right(&memory, 16)), role(Role::Text)));
    let (free, all) = host.free();
    let gpus = if all == 0 { NONE.to_owned() } else { format!("{free} of {all}") };
    let free_role = if free > 0 { role(Role::Good) } else { Role::Dim };
    spans.push(pen.s(format!(" {}", pen.right(&gpus, 10)), free_role));
    let heard = host.heard.map_or(0, |heard| pen.now.since(heard) / 1000);
    let heard = if heard < 60 { format!("{heard}s") } else { words::duration(heard as f64) };
    spans.push(pen.s(format!(" {:>5}", heard), if late { Role::Warn } else { Role::Dim }));
    let runs: Vec<&str> = home.runs_on(&host.name).map(|row| row.run.as_str()).collect();
    let runs = if runs.is_empty() { "idle".to_owned() } else { runs.join(" ") };
    spans.push(pen.s(format!("  {}", pen.cut(&runs, 80)), role(Role::Text)));
    Line::from(spans)
}

fn gpu_line(pen: &Pen<'_>, host: &FleetHost, track: &GpuTrack, cells: usize) -> Line<'static> {
    let late = is_late(host, pen.now) || host.trouble.is_some();
    let role = |role: Role| if late { Role::Dim } else { role };
    let look = host.look.as_ref();
    let Some(gpu) = look.and_then(|look| look.sample.gpus.iter().find(|gpu| gpu.index == track.index)) else {
        return Line::default();
    };
    let mut spans = vec![pen.s(format!("    {:>2} ", gpu.index), Role::Dim)];
    if gpu.lost {
        spans.push(pen.s("the driver has lost it", Role::Bad));
        return Line::from(spans);
    }
    if cells >= 120 {
        spans.push(pen.s(pen.left(gpu.name.trim_start_matches("NVIDIA "), 18), Role::Dim));
        spans.push(Span::raw(" "));
    }
    let room = if cells >= 160 { 24 } else { 8 };
    let history = track.history.iter().map(|value| f64::from(*value));
    let spark = meter::spark(history, room, 0.0, 100.0, pen.theme.glyphs);
    spans.push(pen.s(pen.left(&spark, room), role(Role::Accent)));
    let told = |value: Option<String>| value.unwrap_or_else(|| NONE.into());
    let percent = told(gpu.utilization.map(|percent| format!("{percent}%")));
    spans.push(pen.s(format!(" {percent:>4}"), role(Role::Text)));
    let memory = match gpu.memory_total {
        // The driver does not tell.
        0 => NONE.to_owned(),
        total => format!("{} of {}", words::bytes(gpu.memory_used), words::bytes(total)),
    };
    spans.push(pen.s(format!(" {}", pen.right(&memory, 20)), role(Role::Text)));
    let power = told(gpu.power_w.map(|watts| format!("{watts:.0}W")));
    let degrees = pen.theme.glyphs.pick("°C", "C");
    let heat = told(gpu.temperature_c.map(|celsius| format!("{celsius}{degrees}")));
    spans.push(pen.s(format!(" {power:>5} {heat:>5}"), role(Role::Text)));
    if cells >= 100 {
        let clock = |mhz: Option<u32>| mhz.map_or_else(|| NONE.into(), |mhz| mhz.to_string());
        let clocks = format!("{}/{}", clock(gpu.sm_clock_mhz), clock(gpu.memory_clock_mhz));
        spans.push(pen.s(format!(" {} MHz", pen.right(&clocks, 9)), role(Role::Dim)));
    }
    if !gpu.throttle.is_empty() {
        spans.push(pen.s(format!("  {}", gpu.throttle.join(", ")), role(Role::Warn)));
    }
    if !gpu.xids.is_empty() {
        let xids: Vec<String> = gpu.xids.iter().map(u64::to_string).collect();
        spans.push(pen.s(format!("  Xid {}", xids.join(" ")), Role::Bad));
    }
    spans.push(Span::raw("  "));
    match track.free {
        Some(since) => spans.push(pen.s(free_text(since, pen.now), role(Role::Good))),
        None => spans.push(
            pen.s(users(gpu, &look.map(|look| look.users.clone()).unwrap_or_default()), role(Role::Text)),
        ),
    }
    Line::from(spans)
}

/// `free for 12m`; `12m+` where it may have been free for longer.
fn free_text(since: FreeSince, now: Timestamp) -> String {
    let seconds = now.since(since.at) / 1000;
    let long = match seconds {
        s if s < 60 => format!("{s}s"),
        s if s < 3600 => format!("{}m", s / 60),
        s => format!("{}h {:02}m", s / 3600, s / 60 % 60),
    };
    if since.or_longer { format!("free for {long}+") } else { format!("free for {long}") }
}

/// Who uses a GPU: user, pid, memory, command, run.
fn users(gpu: &GpuSample, users: &[GpuUser]) -> String {
    if gpu.processes.is_empty() {
        return "in use; by whom does not show here".into();
    }
    let told = gpu.processes.iter().map(|(pid, bytes)| {
        let user = users.iter().find(|user| user.pid == *pid);
        let whose = user.map_or("?", |user| user.user.as_str());
        let what = user.map_or("", |user| user.run.as_deref().unwrap_or(&user.command));
        format!("{whose} {pid} {} {what}", words::bytes(*bytes))
    });
    told.collect::<Vec<_>>().join("; ")
}
