//! The training loop of one rank. Its invariants are the [trainer's](crate::trainer).

use super::algo::adam::Adam;
use super::algo::ppo::{Learned, Parts, Ppo, annealed};
use super::checkpoint::{Checkpoint, Header, shapes};
use super::collect::{Collector, Tally};
use super::dist::{Ddp, GroupSettings, Page, ProcessGroup};
use super::env::{self, make_vector, spec_of};
use super::error::TrainerError;
use super::evaluate::evaluate;
use super::exchange::{Brought, exchange, gather};
use super::policy::actor_critic::Layout;
use super::policy::{ActorCritic, MlpFast};
use super::report::{Events, say, warn};
use super::resume;
use super::seeds::{Purpose, Seeds};
use super::settings::Settings;
use super::setup::{self, Sizes};
use super::signals;
use super::tell::{Teller, Told};
use crate::config::experiment::{Experiment, Ppo as PpoSettings};
use crate::proto::message::{Evaluation, FinishReason, Phase, RankEvent};
use crate::proto::status_page::Writer;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tch::{Device, Tensor};

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
    let (env, ppo) = setup::parts(&experiment)?;
    let sizes = Sizes::resolve(&experiment, settings.rank, settings.world_size)?;
    let spec = spec_of(env)?;
    let layout = Layout::new(&spec, &experiment.policy.hidden);
    // Refused before the others are waited for.
    let algorithm = |device| {
        let width = spec.observation_len();
        Ppo::new(ppo.clone(), experiment.distributed.fingerprint_every, sizes.local_batch, width, device)
    };
    algorithm(Device::Cpu)?;
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
    let ppo = algorithm(device)?;
    let mut trainer = Trainer::new(settings, &experiment, sizes, layout, device, ppo, &group, &page, events)?;
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
    settings: PpoSettings,
    sizes: Sizes,
    seeds: Seeds,
    group: &'a ProcessGroup,
    page: &'a Page,
    teller: Teller<'a>,
    policy: ActorCritic,
    adam: Adam,
    ddp: Ddp,
    ppo: Ppo,
    collector: Collector,
    greedy: MlpFast,
    weights: Vec<f32>,
    env_id: String,
    num_envs: u32,
    run_dir: PathBuf,
    train_iter: u64,
    updates: u64,
    best: Option<f64>,
}

impl<'a> Trainer<'a> {
    #[expect(
        clippy::too_many_arguments,
        reason = "called once; a struct of these would only be taken apart again"
    )]
    fn new(
        settings: &Settings,
        experiment: &'a Experiment,
        sizes: Sizes,
        layout: Layout,
        device: Device,
        ppo: Ppo,
        group: &'a ProcessGroup,
        page: &'a Page,
        events: &'a Events,
    ) -> Result<Trainer<'a>, TrainerError> {
        let (env, ppo_settings) = setup::parts(experiment)?;
        let seeds = Seeds::new(experiment.run.seed);
        let run_dir = setup::run_dir(settings, &experiment.run.name);
        let mut policy = ActorCritic::new(layout.clone(), &seeds, device)?;
        let mut adam = Adam::new(layout.len, ppo_settings.adam_eps, device)?;
        let resumed = match &settings.resume {
            Some(from) => {
                let or_afresh = from == "latest" && settings.generation > 0;
                let path = resume::find(from, &run_dir);
                resume::share(group, &path, or_afresh, &layout, &env.id, device)?
            }
            None => None,
        };
        let (mut train_iter, mut best) = (0, None);
        if let Some(checkpoint) = &resumed {
            policy.copy_from(&checkpoint.parameters)?;
            adam.first.f_copy_(&Tensor::f_from_slice(&checkpoint.first)?)?;
            adam.second.f_copy_(&Tensor::f_from_slice(&checkpoint.second)?)?;
            adam.steps = checkpoint.header.updates;
            (train_iter, best) = (checkpoint.header.train_iter, checkpoint.header.best);
        }
        let bucket = (experiment.distributed.bucket_mb.clamp(0.0, 4096.0) * 1024.0 * 1024.0) as usize;
        let ddp = Ddp::new(policy.named_parameters(), Vec::new(), group, bucket)?;
        let envs = make_vector(
            env,
            sizes.local_envs as usize,
            sizes.first_env,
            &seeds,
            train_iter,
            env::Purpose::Train,
        )?;
        let mut collector = Collector::new(envs, &layout, seeds, sizes.first_env, sizes.num_steps as usize);
        if let Some(checkpoint) = &resumed {
            let each = collector.words_per_env();
            let share = resume::share_of(checkpoint, group.rank(), group.world_size(), env.num_envs, each);
            collector.resume_tally(share.tally);
            if let Some(envs) = share.envs {
                collector.restore_envs(&envs)?;
            }
        }
        let trainer = Trainer {
            experiment,
            settings: ppo_settings.clone(),
            sizes,
            seeds,
            group,
            page,
            teller: Teller::new(events, group.rank(), &run_dir),
            weights: vec![0.0; layout.len],
            greedy: MlpFast::new(&layout),
            updates: adam.steps,
            policy,
            adam,
            ddp,
            ppo,
            collector,
            env_id: env.id.clone(),
            num_envs: env.num_envs,
            run_dir,
            train_iter,
            best,
        };
        trainer.announce(resumed.is_some(), settings.resume.is_some());
        trainer.show_counters();
        Ok(trainer)
    }

    fn is_first(&self) -> bool {
        self.group.rank() == 0
    }

    fn announce(&self, resumed: bool, restart: bool) {
        if !self.is_first() {
            return;
        }
        let Sizes { local_envs, local_batch, batch, num_iterations, .. } = self.sizes;
        let minibatches = self.settings.num_minibatches as usize;
        let goal = num_iterations.map_or("no limit".into(), |n| format!("{n} iterations"));
        say(&format!(
            "{}: {} environments ({local_envs} per rank), rollout {batch} ({local_batch} per rank), minibatch {} ({} per rank), {goal}, run directory {}",
            self.env_id,
            self.num_envs,
            batch as usize / minibatches.max(1),
            local_batch / minibatches.max(1),
            self.run_dir.display(),
        ));
        match (resumed, restart) {
            (true, _) => {
                say(&format!("resumed after iteration {}, update {}", self.train_iter, self.updates))
            }
            (false, true) => say("no checkpoint was written before the restart: beginning afresh"),
            (false, false) => {}
        }
    }

    fn show_counters(&self) {
        let tally = self.collector.tally();
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

    /// One rollout and what is learnt from it.
    fn iterate(&mut self) -> Result<Learned, TrainerError> {
        let (page, iteration) = (self.page, self.train_iter);
        page.borrow_mut().phase(Phase::Rollout);
        self.policy.copy_to(&mut self.weights)?;
        self.collector.collect(&self.weights, iteration, |tally| {
            page.borrow_mut().update(|body| {
                body.phase_progress += 1;
                (body.env_step, body.samples, body.episodes) =
                    (tally.env_step, tally.samples, tally.episodes);
            });
        })?;
        page.borrow_mut().phase(Phase::Learn);
        let random = self.seeds.generator(Purpose::Shuffle, self.group.rank(), iteration);
        let rate = annealed(&self.settings, iteration, self.sizes.num_iterations);
        let parts =
            Parts { policy: &self.policy, adam: &mut self.adam, ddp: &mut self.ddp, group: self.group };
        let learned =
            self.ppo.learn(self.collector.rollout(), parts, rate, random, self.updates, |updates| {
                page.borrow_mut().update(|body| {
                    body.phase_progress += 1;
                    body.updates = updates;
                });
            })?;
        if !(learned.policy_loss.is_finite() && learned.value_loss.is_finite()) {
            return Err(TrainerError::failure(
                format!("the loss is not a finite number any more in iteration {}", iteration + 1),
                "lower learn.learning_rate, and look at the losses in TensorBoard",
            ));
        }
        self.updates += learned.updates;
        self.train_iter += 1;
        page.borrow_mut().phase(Phase::Sync);
        page.borrow_mut().update(|body| body.train_iter = iteration + 1);
        Ok(learned)
    }

    /// Everything between two iterations; a reason when the loop ends.
    fn between(&mut self, learned: &Learned) -> Result<Option<FinishReason>, TrainerError> {
        let brought = Brought {
            stop: signals::stop_requested(),
            report: self.teller.due(),
            tally: self.collector.tally(),
            chain: learned.chain,
        };
        let agreed = exchange(self.group, brought)?;
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
        let name = format!("iter-{}.ckpt", self.train_iter);
        let files = [
            (checkpoint, name.as_str(), "every"),
            (verdict.best && self.experiment.checkpoint.best, "best.ckpt", "best"),
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
        let own = self.collector.take_interval();
        let losses = learned.losses();
        let gathered = gather(self.group, &own, &losses.map(|(_, value)| value))?;
        let (iteration, updates) = (self.train_iter, self.updates);
        self.teller.iteration(Told {
            own: self.collector.tally().counters(iteration, updates, own.returns),
            totals: totals.counters(iteration, updates, gathered.interval.returns),
            interval: gathered.interval,
            losses: losses.iter().map(|(name, _)| *name).zip(gathered.means).collect(),
            learning_rate: annealed(&self.settings, iteration - 1, self.sizes.num_iterations),
        });
        Ok(())
    }

    /// Rank 0 plays, all learn the result.
    fn evaluate(&mut self, env_step: u64) -> Result<Verdict, TrainerError> {
        let mut verdict = Verdict::default();
        if self.is_first() {
            let page = self.page;
            let (env, _) = setup::parts(self.experiment)?;
            page.borrow_mut().phase(Phase::Eval);
            self.policy.copy_to(&mut self.weights)?;
            self.greedy.load(&self.weights);
            let episodes = self.experiment.eval.episodes;
            match evaluate(env, episodes, &mut self.greedy, &self.seeds, || page.borrow_mut().progress()) {
                Ok(evaluation) => {
                    let mean = evaluation.return_mean;
                    let reached = self.experiment.eval.stop_value.is_some_and(|goal| mean >= goal);
                    let stop = reached && self.train_iter > 0 && episodes > 0;
                    verdict.best = self.train_iter > 0 && self.best.is_none_or(|best| mean > best);
                    verdict.evaluation =
                        Evaluation { env_step, train_iter: self.train_iter, stop, ..evaluation };
                }
                Err(error) => verdict.error = Some(error.to_string()),
            }
            page.borrow_mut().phase(Phase::Sync);
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

    /// Gathers what the ranks own; rank 0 writes it under each of the names, for each of the reasons.
    fn checkpoint(&mut self, files: &[(&str, &str)]) -> Result<(), TrainerError> {
        self.page.borrow_mut().phase(Phase::Checkpoint);
        let own = resume::own_words(&self.collector);
        let ranks = resume::gather_words(self.group, &own, self.policy.flat().device())?;
        if self.is_first() {
            let layout = self.policy.layout();
            let moments = |tensor: &Tensor| -> Result<Vec<f32>, TrainerError> {
                let mut values = vec![0.0; layout.len];
                tensor.f_to_device(Device::Cpu)?.f_copy_data(&mut values, layout.len)?;
                Ok(values)
            };
            let env_step: u64 =
                ranks.chunks(own.len().max(1)).map(|words| Tally::from_words(words).env_step).sum();
            let checkpoint = Checkpoint {
                header: Header {
                    env_id: self.env_id.clone(),
                    seed: self.experiment.run.seed,
                    world_size: self.group.world_size(),
                    num_envs: self.num_envs,
                    words_per_rank: own.len(),
                    words_per_env: self.collector.words_per_env(),
                    train_iter: self.train_iter,
                    updates: self.updates,
                    best: self.best,
                    env_step,
                    layout: shapes(layout),
                },
                parameters: moments(self.policy.flat())?,
                first: moments(&self.adam.first)?,
                second: moments(&self.adam.second)?,
                ranks,
            };
            for (name, reason) in files {
                let path = checkpoint.write(&self.run_dir.join("checkpoints"), name)?;
                self.page.borrow_mut().progress();
                self.teller.checkpoint(&path, env_step, self.train_iter, reason);
            }
        }
        self.page.borrow_mut().phase(Phase::Sync);
        Ok(())
    }
}
