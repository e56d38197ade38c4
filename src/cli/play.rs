//! `rankdeck play`: a checkpoint's policy, drawn as it plays.
//!
//! The trainer plays, as for `eval`; what it sees, thinks and does is drawn here, recorded, or told as a line
//! per episode.

use super::args::OutputArgs;
use super::args::play::PlayArgs;
use super::choose::{self, OutputChoice, TerminalInfo};
use super::{Failure, code, policy, print};
use crate::shell::play::player::Player;
use crate::shell::play::record::{Form, MOST, Recorder};
use crate::shell::play::screen;
use crate::shell::stderr;
use rankdeck_config::HostsSource;
use rankdeck_proto::show::{EndKind, ShowLine};
use rankdeck_tui::Theme;
use rankdeck_tui::play::{Colours, Play};
use rankdeck_types::words::{bytes, plural};
use std::path::Path;
use std::process::Command;

/// Episodes of a recording, unless more are asked for.
const RECORDED: u32 = 3;
/// Episodes that nobody sees the end of.
const ENDLESS: u32 = 1_000_000;

/// Runs `rankdeck play`.
pub async fn play(hosts_from: &HostsSource, args: PlayArgs) -> Result<u8, Failure> {
    let form = args.record.as_deref().map(|file| form(file, args.force)).transpose()?;
    let output = OutputArgs {
        headless: args.headless,
        theme: args.theme.clone(),
        glyphs: args.glyphs.clone(),
        ..OutputArgs::default()
    };
    let chosen = choose::choose(&output, &TerminalInfo::here())?;
    let checkpoint = policy::here(hosts_from, &args.policy, "ckpt", &args.host_keys).await?;
    let mut command = policy::trainer(&checkpoint, args.python.as_deref())?;
    command.arg("--show");
    let endless = form.is_none() && chosen == OutputChoice::Screen;
    let episodes = match form {
        Some(_) => Some(args.episodes.unwrap_or(RECORDED)),
        None => args.episodes,
    };
    if let Some(episodes) = episodes.or(endless.then_some(ENDLESS)) {
        command.arg("--episodes").arg(episodes.to_string());
    }
    let play = Play::new(&args.policy, episodes);
    match (form, args.record.as_deref()) {
        (Some(form), Some(file)) => record(form, file, &args, command, play).await,
        _ if endless => on_screen(&args, command, play).await,
        _ => as_lines(command).await,
    }
}

fn started(command: Command) -> Result<Player, Failure> {
    Player::start(command).map_err(|error| {
        Failure::failed(format!("failed to start rankdeck-trainer: {error}"))
            .hint("reinstall rankdeck: its two programs belong together")
    })
}

/// What the player said at its end: the error, then the hint.
fn failed(why: &str) -> Failure {
    let (error, hint) = why.split_once('\n').unwrap_or((why, ""));
    Failure::failed(error.to_owned()).hint(hint)
}

async fn on_screen(args: &PlayArgs, command: Command, play: Play) -> Result<u8, Failure> {
    let player = started(command)?;
    let play = screen::show(&choose::ui(), args.pictures.graphics(), player, play).await;
    let play = play.map_err(|error| {
        Failure::failed(format!("the terminal failed: {error}")).hint("`--headless` says a line per episode")
    })?;
    if let Some(Err(why)) = &play.over {
        return Err(failed(why));
    }
    sum_up(&play.returns);
    Ok(code::SUCCESS)
}

fn sum_up(returns: &[(f64, u64)]) {
    if !returns.is_empty() {
        let mean = returns.iter().map(|(gained, _)| gained).sum::<f64>() / returns.len() as f64;
        print::stdout(&format!("mean return {mean:.3} over {}", plural(returns.len(), "episode")));
    }
}

async fn as_lines(command: Command) -> Result<u8, Failure> {
    let mut player = started(command)?;
    let mut returns = Vec::new();
    while let Some(line) = player.next().await {
        match line {
            ShowLine::Policy(policy) => {
                print::stdout(&format!(
                    "{} on {}, after iteration {}",
                    policy.algorithm, policy.env_id, policy.train_iter
                ));
            }
            ShowLine::End(end) => {
                let how = match end.end {
                    EndKind::Terminated => "",
                    EndKind::Truncated => ", ended by its time limit",
                    EndKind::Cut => ", cut by eval.max_steps",
                };
                print::stdout(&format!(
                    "episode {}: return {:.3} in {} steps{how}",
                    u64::from(end.episode) + 1,
                    end.episode_return,
                    end.steps
                ));
                returns.push((end.episode_return, end.steps));
            }
            ShowLine::Step(_) | ShowLine::Unknown => {}
        }
    }
    player.end().await.map_err(|why| failed(&why))?;
    sum_up(&returns);
    Ok(code::SUCCESS)
}

/// What a file is to be, by its ending; before anything is played.
fn form(file: &Path, force: bool) -> Result<Form, Failure> {
    let form = match file.extension().and_then(|ending| ending.to_str()) {
        Some("cast") => Form::Cast,
        Some("gif") => Form::Gif,
        _ => {
            return Err(Failure::usage(format!("--record {}: of which kind?", file.display()))
                .hint("FILE.cast is an asciicast, FILE.gif an animation"));
        }
    };
    if file.exists() && !force {
        return Err(Failure::usage(format!("{} is there already", file.display()))
            .hint("give another name, or --force to replace it"));
    }
    Ok(form)
}

async fn record(
    form: Form,
    file: &Path,
    args: &PlayArgs,
    command: Command,
    mut play: Play,
) -> Result<u8, Failure> {
    let theme = args.theme.as_deref().and_then(Theme::named).unwrap_or_else(Theme::dark);
    let glyphs = args.glyphs.as_deref().and_then(rankdeck_tui::Glyphs::named);
    let theme = theme.clone().with_glyphs(glyphs.unwrap_or(theme.glyphs));
    play.colours = if theme.name == "mono" { Colours::None } else { Colours::True };
    let mut player = started(command)?;
    let recorder = Recorder::new(form, theme, args.size);
    let recorded = recorder.record(&mut player, &mut play).await.map_err(|why| failed(&why))?;
    std::fs::write(file, &recorded.bytes).map_err(|error| {
        Failure::failed(format!("failed to write {}: {error}", file.display()))
            .hint("give a file in a folder that you may write to")
    })?;
    if recorded.cut {
        stderr::line(&format!("warning: cut off at {}", bytes(MOST as u64)));
    }
    print::stdout(&format!(
        "recorded {} to {}: {:.1} s, {}",
        plural(play.returns.len(), "episode"),
        file.display(),
        recorded.seconds,
        bytes(recorded.bytes.len() as u64)
    ));
    Ok(code::SUCCESS)
}
