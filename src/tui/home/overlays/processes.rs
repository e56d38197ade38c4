//! Lists the processes on the GPUs of a host; shows environment variables of your own processes and sends signals.

use super::confirm::Confirmation;
use crate::home::model::{FleetHost, Home};
use crate::home::{Cx, DrawCtx, Handled, HomeAction, HomeRequest, HomeTarget, HomeUi, HomeView, READ_ONLY};
use crate::process_list::{self, ProcessRow};
use crossterm::event::{KeyCode, KeyEvent};
use rankdeck_kit::list::Move;
use rankdeck_kit::{Component, Role, Target};
use rankdeck_proto::process::{GpuUser, ProcessAction, ProcessName};
use rankdeck_types::words;
use ratatui::buffer::Buffer;

/// Keys that send a signal.
const SIGNALS: [(char, &str); 4] = [('T', "TERM"), ('I', "INT"), ('U', "USR1"), ('K', "KILL")];

/// The processes on the GPUs of a host.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuProcesses {
    /// Name of the host.
    host: String,
    /// `None`: the first.
    selected: Option<ProcessName>,
}

impl GpuProcesses {
    /// Lists the processes of this host.
    pub fn new(host: String) -> GpuProcesses {
        GpuProcesses { host, selected: None }
    }

    fn find<'a>(&self, home: &'a Home) -> Option<&'a FleetHost> {
        home.hosts.iter().find(|host| host.name == self.host)
    }

    fn users<'a>(&self, home: &'a Home) -> &'a [GpuUser] {
        let snapshot = self.find(home).and_then(|host| host.snapshot.as_ref());
        snapshot.map_or(&[], |snapshot| &snapshot.users)
    }

    fn index(&self, users: &[GpuUser]) -> usize {
        users.iter().position(|user| Some(ProcessName::of(user)) == self.selected).unwrap_or(0)
    }

    /// Queries or signals a process, the latter after a question.
    fn act(&self, user: &GpuUser, action: ProcessAction, cx: &mut Cx<'_>) -> Handled {
        let (host, process) = (&self.host, ProcessName::of(user));
        if !user.own {
            cx.state.toast(format!("{process} belongs to {}", user.user), Role::Warn, cx.now);
            return Handled::Close;
        }
        let request = HomeAction::Process { host: host.clone(), process, action };
        let ProcessAction::Signal { signal } = action else {
            cx.state.toast(format!("requesting {action} from {host} ..."), Role::Dim, cx.now);
            return Handled::CloseWith(vec![HomeRequest::Do(request)]);
        };
        if cx.state.read_only {
            cx.state.toast(READ_ONLY, Role::Warn, cx.now);
            return Handled::Close;
        }
        let name = words::signal_name(signal);
        let effect = match name.as_str() {
            "SIGKILL" => "Terminates the process immediately, without cleanup.".to_owned(),
            _ => format!("{name} terminates programs that do not handle it."),
        };
        let text = vec![format!("{process} on {host}: {}", user.command), effect];
        let label = format!("send {name}");
        let question = Confirmation::new(&format!("{label}?"), text, &label, request);
        Handled::CloseWith(vec![HomeRequest::Open(question.into())])
    }
}

/// Returns the GPUs of a process, and its memory there.
fn gpus_of(host: Option<&FleetHost>, pid: u32) -> (String, u64) {
    let snapshot = host.and_then(|host| host.snapshot.as_ref());
    let gpus = snapshot.map_or(&[][..], |snapshot| &snapshot.sample.gpus);
    let own =
        gpus.iter().flat_map(|gpu| gpu.processes.iter().map(move |(user, bytes)| (gpu.index, *user, *bytes)));
    let own: Vec<(u32, u64)> =
        own.filter(|(_, user, _)| *user == pid).map(|(gpu, _, bytes)| (gpu, bytes)).collect();
    let mut indices: Vec<String> = own.iter().map(|(gpu, _)| gpu.to_string()).collect();
    indices.dedup();
    (indices.join(","), own.iter().map(|(_, bytes)| bytes).sum())
}

impl Component<HomeUi> for GpuProcesses {
    fn on_key(&mut self, home: &Home, key: KeyEvent, cx: &mut Cx<'_>) -> Handled {
        if matches!(key.code, KeyCode::Char('q' | 'p')) {
            return Handled::Close;
        }
        let users = self.users(home);
        let at = self.index(users);
        let to = Move::of_key(key, true).map_or(at, |by| by.apply(at, users.len()));
        let Some(user) = users.get(to) else { return Handled::Done };
        self.selected = Some(ProcessName::of(user));
        match key.code {
            KeyCode::Enter | KeyCode::Char('e') => self.act(user, ProcessAction::Environment, cx),
            KeyCode::Char(typed) => {
                let name = SIGNALS.iter().find(|(key, _)| *key == typed);
                match name.and_then(|(_, name)| words::signal_named(name)) {
                    Some(signal) => self.act(user, ProcessAction::Signal { signal }, cx),
                    None => Handled::Done,
                }
            }
            _ => Handled::Done,
        }
    }

    fn on_click(&mut self, home: &Home, target: &Target<HomeTarget>, _: &mut Cx<'_>) -> Handled {
        let Target::Row(row) = target else { return Handled::Ignored };
        self.selected = self.users(home).get(*row).map(ProcessName::of);
        Handled::Done
    }

    fn draw(&self, home: &Home, _: &HomeView, cx: &DrawCtx<'_>, buf: &mut Buffer) {
        let users = self.users(home);
        let host = self.find(home);
        let row = |(process, user): (usize, &GpuUser)| {
            let (gpus, memory) = gpus_of(host, user.pid);
            let run = user.run.as_ref().map_or(String::new(), |run| format!("{run}: "));
            ProcessRow {
                process,
                is_descendant: false,
                pid: user.pid,
                user: user.user.clone(),
                gpus,
                memory: words::bytes(memory),
                what: run + &user.command,
                role: if user.own { Role::Text } else { Role::Dim },
            }
        };
        let rows: Vec<ProcessRow> = users.iter().enumerate().map(row).collect();
        let title = format!("processes on GPUs of {}", self.host);
        process_list::draw(cx, buf, (&title, "no process on these GPUs"), &rows, self.index(users));
    }

    fn hint(&self, home: &Home, _: &HomeView, _: &DrawCtx<'_>) -> String {
        match self.users(home) {
            [] => "esc closes".into(),
            _ => "e env vars   T SIGTERM   I SIGINT   U SIGUSR1   K SIGKILL   esc closes".into(),
        }
    }
}
