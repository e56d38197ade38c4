//! `--evaluate FILE --show`: a policy plays one environment, and everything that it sees, thinks and does is
//! printed.
//!
//! Owner: `rankdeck play`, which reads the lines and draws them. Who reads slowly is waited for: the pipe is
//! the only clock. The first episode is the first one of the run's evaluations; the others follow in its
//! stream.

use super::env::{StepOutcome, VectorEnv};
use super::error::TrainerError;
use super::evaluate::Greedy;
use super::rollout::ActionBuffer;
use super::sight;
use super::signals;
use rankdeck_proto::show::{EndKind, ShowLine, ShownEnd, ShownPolicy, ShownStep};
use rankdeck_types::experiment::Eval;
use std::io::{self, Write};

/// Plays `eval.episodes` episodes of the only environment, and prints them.
pub fn show(
    env: &mut dyn VectorEnv,
    eval: &Eval,
    greedy: &mut dyn Greedy,
    policy: ShownPolicy,
) -> Result<(), TrainerError> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    match play(env, eval, greedy, &mut |line| print(&mut out, line), policy)? {
        Audience::Yes => Ok(()),
        Audience::No(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Audience::No(error) => Err(TrainerError::failure(format!("cannot print a step: {error}"), "")),
    }
}

/// Somebody reads the lines.
enum Audience {
    Yes,
    No(io::Error),
}

fn print(out: &mut impl Write, line: &ShowLine) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")?;
    out.flush()
}

fn play(
    env: &mut dyn VectorEnv,
    eval: &Eval,
    greedy: &mut dyn Greedy,
    print: &mut dyn FnMut(&ShowLine) -> io::Result<()>,
    policy: ShownPolicy,
) -> Result<Audience, TrainerError> {
    if let Err(error) = print(&ShowLine::Policy(policy)) {
        return Ok(Audience::No(error));
    }
    env.reset()?;
    let spec = env.spec().clone();
    let mut outcome = StepOutcome::new(&spec, env.len());
    let mut actions = ActionBuffer::new(&spec.actions, env.len());
    let (mut episode, mut step, mut episode_return) = (0, 0, 0.0);
    while episode < eval.episodes && !signals::stop_requested() {
        greedy.act(env.observations(), &mut actions)?;
        let mut shown = ShownStep {
            episode,
            step,
            ..sight::look(env.observations(), &spec, 0, greedy.thought(0), &actions, usize::MAX)
        };
        if let Some(drawn) = env.picture(0)? {
            shown.picture = Some(drawn);
        }
        env.step(actions.view(), &mut outcome)?;
        shown.reward = f64::from(outcome.rewards[0]);
        episode_return += shown.reward;
        step += 1;
        shown.episode_return = episode_return;
        let kind = match () {
            () if outcome.terminated[0] => Some(EndKind::Terminated),
            () if outcome.truncated[0] => Some(EndKind::Truncated),
            () if step >= u64::from(eval.max_steps) => Some(EndKind::Cut),
            () => None,
        };
        let end = kind.map(|end| {
            let last = match end {
                EndKind::Cut => env.observations(),
                EndKind::Terminated | EndKind::Truncated => outcome.final_observations.view(),
            };
            ShowLine::End(ShownEnd {
                episode,
                steps: step,
                episode_return,
                end,
                seen: sight::numbers(last, &spec, 0),
            })
        });
        for line in [Some(ShowLine::Step(shown)), end].into_iter().flatten() {
            if let Err(error) = print(&line) {
                return Ok(Audience::No(error));
            }
        }
        if let Some(end) = kind {
            (episode, step, episode_return) = (episode + 1, 0, 0.0);
            // What the environment would go on with is not a whole episode.
            if end == EndKind::Cut {
                break;
            }
        }
    }
    Ok(Audience::Yes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{EnvPurpose, Observations, make_vector};
    use rankdeck_kernel::seeds::Seeds;
    use rankdeck_proto::show::Thought;
    use rankdeck_types::experiment::Env;

    /// Pushes to the left, with a thought that is not a number now and then.
    struct LeftPusher(u32);

    impl Greedy for LeftPusher {
        fn act(&mut self, _: Observations<'_>, _: &mut ActionBuffer) -> Result<(), TrainerError> {
            self.0 += 1;
            Ok(())
        }
        fn thought(&self, _: usize) -> Option<Thought> {
            let first = if self.0 == 2 { f32::NAN } else { 0.75 };
            Some(Thought { scores: vec![first, 0.25], value: Some(f32::INFINITY), ..Thought::default() })
        }
    }

    fn lines(eval: &Eval) -> Vec<ShowLine> {
        let env = Env::new("CartPole-v1", 1);
        let mut env = make_vector(&env, 1, 0, &Seeds::new(1), 0, EnvPurpose::Show).unwrap();
        let mut lines = Vec::new();
        let mut keep = |line: &ShowLine| {
            // As they are read.
            lines.push(serde_json::from_str(&serde_json::to_string(line).unwrap()).unwrap());
            Ok(())
        };
        play(&mut *env, eval, &mut LeftPusher(0), &mut keep, ShownPolicy::default()).unwrap();
        lines
    }

    #[test]
    fn every_step_and_every_end_is_a_line_that_can_be_read() {
        let lines = lines(&Eval { episodes: 2, ..Eval::default() });
        assert!(matches!(&lines[0], ShowLine::Policy(_)));
        let steps: Vec<&ShownStep> = lines
            .iter()
            .filter_map(|line| match line {
                ShowLine::Step(step) => Some(step),
                _ => None,
            })
            .collect();
        let ends: Vec<&ShownEnd> = lines
            .iter()
            .filter_map(|line| match line {
                ShowLine::End(end) => Some(end),
                _ => None,
            })
            .collect();
        assert_eq!(ends.len(), 2);
        assert_eq!(steps.len() as u64, ends[0].steps + ends[1].steps);
        let first = &steps[..ends[0].steps as usize];
        assert!(first.iter().enumerate().all(|(i, step)| step.step == i as u64 && step.seen.len() == 4));
        assert_eq!(first.last().unwrap().episode_return, ends[0].episode_return);
        assert_eq!((ends[0].end, ends[0].episode_return), (EndKind::Terminated, ends[0].steps as f64));
        // The pole has fallen in the last observation, and not in those before.
        let fallen = |seen: &[f32]| seen[2].abs() > 0.2095;
        assert!(fallen(&ends[0].seen) && first.iter().all(|step| !fallen(&step.seen)));
        let thoughts: Vec<_> = steps.iter().map(|step| step.thought.clone().unwrap()).collect();
        assert_eq!((thoughts[0].scores.len(), thoughts[1].scores.len()), (2, 0));
        assert!(thoughts.iter().all(|thought| thought.value.is_none()));
    }

    #[test]
    fn an_episode_without_an_end_is_cut_and_a_reader_that_is_gone_ends_it() {
        let cut = lines(&Eval { episodes: 9, max_steps: 3, ..Eval::default() });
        assert_eq!(cut.len(), 1 + 3 + 1);
        assert!(matches!(cut.last(), Some(ShowLine::End(ShownEnd { end: EndKind::Cut, .. }))));
        let env = Env::new("CartPole-v1", 1);
        let mut env = make_vector(&env, 1, 0, &Seeds::new(1), 0, EnvPurpose::Show).unwrap();
        let mut gone = |_: &ShowLine| Err(io::ErrorKind::BrokenPipe.into());
        let heard = play(&mut *env, &Eval::default(), &mut LeftPusher(0), &mut gone, ShownPolicy::default());
        assert!(matches!(heard.unwrap(), Audience::No(_)));
    }
}
