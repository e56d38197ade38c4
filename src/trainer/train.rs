//! The training loop of one rank. Its invariants are the [trainer's](crate).

use super::algo::{self, Algorithm, At, Learned, Parts};
use super::checkpoint::{Checkpoint, Header};
use super::distributed::{GroupSettings, Page, ProcessGroup};
use super::env::{self, VectorEnv};
use super::error::TrainerError;
use super::evaluate::{self, evaluate};
use super::exchange::{Brought, exchange, gather};
use super::replay::Mark;
use super::report::{Events, say, warn};
use super::resume;
use super::settings::Settings;
use super::setup::{self, Sizes};
use super::signals;
use super::state::Restored;
use super::tally::{Tally, mean, push_bounded};
use super::tell::{Teller, Told};
use rankdeck_kernel::seeds::Seeds;
use rankdeck_proto::message::{Activity, Counters, Evaluation, FinishReason, Phase, RankEvent};
use rankdeck_proto::status_page::Writer;
use rankdeck_types::experiment::{Experiment, Learn};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tch::Device;

/// Bound of leaving the group.
const LEAVE: Duration = Duration::from_secs(10);

/// Trains until the budget, the stop value or a signal; `joined` is called once the group is up.
pub fn run(
    settings: &Settings,
    events: &Events,
    joined: impl FnOnce(),
) -> Result<FinishReason, TrainerError> {
    let page = open_page(settings)?;
    let experiment = setup::load_experiment(&settings.config)?;
    let (env, _) = setup::parts(&experiment)?;
    let sizes = Sizes::resolve(&experiment, settings.rank, settings.world_size)?;
    // Refused before the others are waited for.
    let spec = env::spec_of(env)?;
    algo::check(&experiment, &spec, &sizes)?;
    setup::set_threads(&experiment);
    let (backend, device) = setup::device(settings, &experiment)?;
    let group = ProcessGroup::connect(
        &GroupSettings {
            rank: settings.rank,
            world_size: settings.world_size,
            local_rank: settings.local_rank,
            master_addr: settings.master_addr.clone(),
            master_port: settings.master_port,
            backend,
            timeout: timeout(&experiment)?,
            interface: settings.interface.clone(),
            generation: settings.generation,
            device,
        },
        Rc::clone(&page),
    )?;
    joined();
    let device_name = match device {
        Device::Cuda(index) => format!("cuda:{index}"),
        _ => "cpu".to_string(),
    };
    events.send(&RankEvent::Joined {
        world_size: settings.world_size,
        backend: group.backend_name(),
        device: device_name.clone(),
    });
    say(&format!(
        "rank {} of {} joined: {} on {device_name}",
        settings.rank,
        settings.world_size,
        group.backend_name()
    ));
    let parts = Parts {
        experiment: &experiment,
        sizes,
        spec,
        seeds: Seeds::new(experiment.run.seed),
        device,
        group: &group,
        life: 0,
    };
    let mut trainer = Trainer::new(settings, parts, &page, events)?;
    let reason = trainer.run()?;
    page.borrow_mut().phase(Phase::Teardown);
    drop(trainer);
    if let Err(error) = group.destroy(LEAVE) {
        warn(&format!("rank {}: leaving the group: {error}", settings.rank));
    }
    page.borrow_mut().phase(Phase::Done);
    Ok(reason)
}

fn open_page(settings: &Settings) -> Result<Page, TrainerError> {
    let writer = match &settings.status_page {
        Some(path) => Writer::create(path, settings.rank, settings.generation).map_err(|error| {
            TrainerError::failure(
                format!("cannot create status page {}: {error}", path.display()),
                "check RANKDECK_STATUS_PAGE",
            )
        }),
        None => Writer::anonymous(settings.rank, settings.generation)
            .map_err(|error| TrainerError::failure(format!("cannot map a status page: {error}"), "")),
    };
    Ok(Rc::new(RefCell::new(writer?)))
}

fn timeout(experiment: &Experiment) -> Result<Duration, TrainerError> {
    Duration::try_from_secs_f64(experiment.distributed.timeout_s).ok().filter(|t| !t.is_zero()).ok_or_else(
        || {
            TrainerError::usage(
                format!("distributed.timeout_s = {} is no positive time", experiment.distributed.timeout_s),
                "set distributed.timeout_s to seconds above 0",
            )
        },
    )
}

/// What belongs to the checkpoint of this iteration.
fn mark(experiment: &Experiment, group: &ProcessGroup, train_iter: u64) -> Mark {
    Mark {
        env_id: experiment.env.as_ref().map(|env| env.id.clone()).unwrap_or_default(),
        seed: experiment.run.seed,
        rank: group.rank(),
        world_size: group.world_size(),
        train_iter,
    }
}

/// What rank 0 tells all after an evaluation.
#[derive(Default, Serialize, Deserialize)]
struct Verdict {
    evaluation: Evaluation,
    best: bool,
    /// Rank 0 could not evaluate; all ranks end.
    error: Option<String>,
}

struct Trainer<'a> {
    experiment: &'a Experiment,
    sizes: Sizes,
    seeds: Seeds,
    group: &'a ProcessGroup,
    page: &'a Page,
    teller: Teller<'a>,
    algorithm: Box<dyn Algorithm>,
    /// Rank 0's, made at the first evaluation.
    evaluation: Option<Box<dyn VectorEnv>>,
    run_dir: PathBuf,
    train_iter: u64,
    updates: u64,
    /// Over all ranks.
    env_step: u64,
    best: Option<f64>,
    /// Returns of the last training episodes over all ranks; equal on all ranks.
    latest: VecDeque<f64>,
}

impl<'a> Trainer<'a> {
    fn new(
        settings: &Settings,
        parts: Parts<'a>,
        page: &'a Page,
        events: &'a Events,
    ) -> Result<Trainer<'a>, TrainerError> {
        let Parts { experiment, sizes, seeds, device, group, .. } = parts;
        let (env, learn) = setup::parts(experiment)?;
        let run_dir = setup::run_dir(settings, &experiment.run.name);
        let mut resumed = None;
        if let Some(from) = &settings.resume {
            let or_afresh = from == "latest" && settings.generation > 0;
            let path = resume::find(from, &run_dir);
            if let Some(checkpoint) = resume::share(group, &path, or_afresh, device)? {
                checkpoint.is_of(&path, learn.name(), &env.id)?;
                resumed = Some((path, checkpoint));
            }
        }
        let header = resumed.as_ref().map(|(_, checkpoint)| checkpoint.header.clone()).unwrap_or_default();
        let parts = Parts { life: header.train_iter, ..parts };
        let mut algorithm = algo::make(&parts)?;
        let mut lost = false;
        if let Some((path, checkpoint)) = resumed {
            let state = algorithm.state()?;
            checkpoint.fits(&path, &state)?;
            let (rank, world_size) = (group.rank(), group.world_size());
            let share = resume::share_of(&checkpoint, rank, world_size, env.num_envs, state.words_per_env);
            lost = share.envs.is_none();
            algorithm.restore(&Restored {
                arrays: checkpoint.arrays,
                words: checkpoint.words,
                tally: share.tally,
                envs: share.envs,
            })?;
            let beside = path.parent().unwrap_or(&path);
            if experiment.checkpoint.replay
                && let Err(why) = algorithm.load_own(beside, &mark(experiment, group, header.train_iter))
            {
                warn(&format!("rank {rank}: replay begins empty: {why}"));
            }
        }
        let trainer = Trainer {
            experiment,
            sizes,
            seeds,
            group,
            page,
            teller: Teller::new(events, group.rank(), &run_dir),
            algorithm,
            evaluation: None,
            run_dir,
            train_iter: header.train_iter,
            updates: header.updates,
            env_step: header.env_step,
            best: header.best,
            latest: header.latest_returns.iter().copied().collect(),
        };
        trainer.announce(&header, settings.resume.is_some(), lost)?;
        trainer.show_counters();
        Ok(trainer)
    }

    fn is_first(&self) -> bool {
        self.group.rank() == 0
    }

    fn announce(&self, resumed: &Header, restart: bool, lost: bool) -> Result<(), TrainerError> {
        if !self.is_first() {
            return Ok(());
        }
        let (env, learn) = setup::parts(self.experiment)?;
        let Sizes { local_envs, local_batch, batch, num_iterations, .. } = self.sizes;
        let minibatches = learn.num_minibatches().max(1) as usize;
        let goal = num_iterations.map_or("no limit".into(), |n| format!("{n} iterations"));
        let sizes = format!(
            "{} environments ({local_envs} per rank), rollout {batch} ({local_batch} per rank), {}{goal}",
            env.num_envs,
            match learn {
                // The algorithm's own line says what these draw.
                Learn::Dqn(_) | Learn::Sac(_) => String::new(),
                _ => {
                    let (all, own) = (batch as usize / minibatches, local_batch / minibatches);
                    format!("minibatch {all} ({own} per rank), ")
                }
            }
        );
        say(&format!("{} on {}: {sizes}, run directory {}", learn.name(), env.id, self.run_dir.display()));
        if let Some(more) = self.algorithm.plan() {
            say(&more);
        }
        let (was, is) = (resumed.world_size, self.group.world_size());
        match (was > 0, restart) {
            (true, _) => {
                say(&format!("resumed after iteration {}, update {}", self.train_iter, self.updates));
                if was != is {
                    say(&format!(
                        "the checkpoint is of {was} ranks, this run has {is}: sizes are planned anew: {sizes}"
                    ));
                }
                if lost {
                    say("the checkpoint's environments cannot be taken over: new episodes begin");
                }
            }
            (false, true) => say("no checkpoint was written before the restart: beginning afresh"),
            (false, false) => {}
        }
        Ok(())
    }

    fn show_counters(&self) {
        let tally = self.algorithm.tally();
        self.page.borrow_mut().update(|body| {
            (body.train_iter, body.updates) = (self.train_iter, self.updates);
            (body.env_step, body.samples, body.episodes) = (tally.env_step, tally.samples, tally.episodes);
        });
    }

    fn run(&mut self) -> Result<FinishReason, TrainerError> {
        // A resumed run has made the evaluation of its iteration before the checkpoint was written.
        if self.train_iter == 0 && self.experiment.eval.every > 0 {
            self.evaluate(0)?;
        }
        let reason = loop {
            if self.sizes.num_iterations.is_some_and(|all| self.train_iter >= all) {
                break FinishReason::Budget;
            }
            let learned = self.iterate()?;
            if let Some(reason) = self.between(&learned)? {
                break reason;
            }
        };
        let name = if reason == FinishReason::Stopped { "stop" } else { "final" };
        self.checkpoint(&[(resume::LATEST, name)])?;
        Ok(reason)
    }

    fn iterate(&mut self) -> Result<Learned, TrainerError> {
        let at = At {
            group: self.group,
            page: self.page,
            iteration: self.train_iter,
            num_iterations: self.sizes.num_iterations,
            updates: self.updates,
            env_step: self.env_step,
        };
        let learned = self.algorithm.iterate(&at)?;
        let lost = learned.losses.iter().find(|(name, value)| name.ends_with("_loss") && !value.is_finite());
        if let Some((name, _)) = lost {
            return Err(TrainerError::failure(
                format!("{name} is not a finite number any more in iteration {}", self.train_iter + 1),
                "lower the learning rate, and look at the losses in TensorBoard",
            ));
        }
        self.updates += learned.updates;
        self.train_iter += 1;
        self.page.borrow_mut().phase(Phase::Sync);
        self.page.borrow_mut().update(|body| {
            (body.train_iter, body.updates) = (self.train_iter, self.updates);
        });
        Ok(learned)
    }

    /// Everything between two iterations; a reason when the loop ends.
    fn between(&mut self, learned: &Learned) -> Result<Option<FinishReason>, TrainerError> {
        let brought = Brought {
            stop: signals::stop_requested(),
            report: self.teller.due(),
            tally: self.algorithm.tally(),
            chain: learned.chain,
        };
        let agreed = exchange(self.group, brought)?;
        self.env_step = agreed.totals.env_step;
        let every = |every: u64| every > 0 && self.train_iter.is_multiple_of(every);
        let last = self.sizes.num_iterations == Some(self.train_iter);
        let evaluate =
            !agreed.stop && (every(self.experiment.eval.every) || last && self.experiment.eval.every > 0);
        let checkpoint = every(self.experiment.checkpoint.every);
        let report = agreed.report || agreed.stop || evaluate || checkpoint || last;
        self.teller.fingerprints(&agreed, (self.train_iter, self.updates), report);
        if report {
            self.report(&agreed.totals, learned)?;
        }
        let mut verdict = Verdict::default();
        if evaluate {
            verdict = self.evaluate(agreed.totals.env_step)?;
        }
        let name = format!("iter-{}", self.train_iter);
        let files = [
            (checkpoint, name.as_str(), "every"),
            (verdict.best && self.experiment.checkpoint.best, "best", "best"),
        ];
        let mut files: Vec<(&str, &str)> =
            files.iter().filter(|file| file.0).map(|(_, name, why)| (*name, *why)).collect();
        if !files.is_empty() {
            // `latest` is never older than another checkpoint.
            files.push((resume::LATEST, "latest"));
            self.checkpoint(&files)?;
        }
        Ok(match (agreed.stop, verdict.evaluation.stop) {
            (true, _) => Some(FinishReason::Stopped),
            (_, true) => Some(FinishReason::StopValue),
            _ => None,
        })
    }

    fn report(&mut self, totals: &Tally, learned: &Learned) -> Result<(), TrainerError> {
        let own = self.algorithm.take_interval();
        let (names, values): (Vec<&str>, Vec<f64>) = learned.losses.iter().copied().unzip();
        let gathered = gather(self.group, &own, &values)?;
        // A return that is no number, which only a broken environment gives, would stay for a hundred episodes.
        let ended = gathered.interval.latest.iter().map(|ended| ended.episode_return);
        ended.filter(|one| one.is_finite()).for_each(|one| push_bounded(&mut self.latest, one));
        let (iteration, updates) = (self.train_iter, self.updates);
        let totals = totals.counters(iteration, updates, gathered.interval.returns);
        self.teller.iteration(Told {
            own: self.algorithm.tally().counters(iteration, updates, own.returns),
            totals: Counters { return_last_100: mean(self.latest.iter()), ..totals },
            interval: gathered.interval,
            losses: names.into_iter().zip(gathered.means).collect(),
            learning_rate: learned.learning_rate,
        });
        Ok(())
    }

    /// Rank 0 plays, all learn the result.
    fn evaluate(&mut self, env_step: u64) -> Result<Verdict, TrainerError> {
        let mut verdict = Verdict::default();
        if self.is_first() {
            self.page.borrow_mut().phase(Phase::Eval);
            match self.play() {
                Ok(evaluation) => {
                    let mean = evaluation.return_mean;
                    let reached = self.experiment.eval.stop_value.is_some_and(|goal| mean >= goal);
                    let stop = reached && self.train_iter > 0 && evaluation.episodes > 0;
                    verdict.best = self.train_iter > 0 && self.best.is_none_or(|best| mean > best);
                    verdict.evaluation =
                        Evaluation { env_step, train_iter: self.train_iter, stop, ..evaluation };
                }
                Err(error) => verdict.error = Some(error.to_string()),
            }
            self.page.borrow_mut().phase(Phase::Sync);
        }
        self.group.broadcast_object(&mut verdict, 0, "eval")?;
        if let Some(error) = &verdict.error {
            return Err(TrainerError::failure(format!("rank 0 cannot evaluate: {error}"), ""));
        }
        if verdict.best {
            self.best = Some(verdict.evaluation.return_mean);
        }
        self.teller.evaluation(&verdict.evaluation);
        Ok(verdict)
    }

    fn play(&mut self) -> Result<Evaluation, TrainerError> {
        let (episodes, page) = (self.experiment.eval.episodes, self.page);
        let envs = match &mut self.evaluation {
            Some(envs) => envs,
            made => {
                let (env, _) = setup::parts(self.experiment)?;
                let count = episodes.clamp(1, evaluate::MAX_ENVS) as usize;
                let purpose = env::Purpose::Evaluate;
                let mut vector = env::make_vector(env, count, 0, &self.seeds, 0, purpose)?;
                vector.watch(algo::shown(page));
                made.insert(vector)
            }
        };
        evaluate(&mut **envs, episodes, self.algorithm.greedy()?, |played| {
            page.borrow_mut().amount(played as u64, u64::from(episodes));
        })
    }

    /// Gathers what the ranks own; rank 0 writes it under each of the names, for each of the reasons.
    fn checkpoint(&mut self, files: &[(&str, &str)]) -> Result<(), TrainerError> {
        self.page.borrow_mut().phase(Phase::Checkpoint);
        if self.experiment.checkpoint.replay {
            let mark = mark(self.experiment, self.group, self.train_iter);
            self.algorithm.save_own(&resume::folder(&self.run_dir), &mark)?;
        }
        let state = self.algorithm.state()?;
        let own = resume::own_words(self.algorithm.tally(), &state.envs);
        let ranks = self.group.all_gather_words(&own, "checkpoint")?.concat();
        if self.is_first() {
            let (env, learn) = setup::parts(self.experiment)?;
            let env_step: u64 =
                ranks.chunks(own.len().max(1)).map(|words| Tally::from_words(words).env_step).sum();
            let header = Header {
                algorithm: learn.name().into(),
                env_id: env.id.clone(),
                seed: self.experiment.run.seed,
                world_size: self.group.world_size(),
                num_envs: env.num_envs,
                words_per_rank: own.len(),
                words_per_env: state.words_per_env,
                train_iter: self.train_iter,
                updates: self.updates,
                best: self.best,
                latest_returns: self.latest.iter().copied().collect(),
                env_step,
                ..Header::default()
            };
            let checkpoint = Checkpoint { header, arrays: state.arrays, words: state.words, ranks };
            self.page.borrow_mut().activity(Activity::Save);
            for (name, reason) in files {
                let path = checkpoint.write(&resume::folder(&self.run_dir), name, |written, of| {
                    self.page.borrow_mut().amount(written, of);
                })?;
                self.teller.checkpoint(&path, env_step, self.train_iter, reason);
            }
        }
        self.page.borrow_mut().phase(Phase::Sync);
        Ok(())
    }
}
