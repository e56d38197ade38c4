//! Proximal policy optimization (Schulman et al. 2017) over all ranks, with the details of CleanRL's ppo.py
//! and ppo_continuous_action.py.
//!
//! Each rank shuffles its own rollout into minibatches of `local_batch / num_minibatches`; gradients are
//! averaged over the ranks, then clipped, then Adam steps. With equal local sizes the average of the ranks'
//! gradients is the gradient of the mean over all samples, except that advantages are normalized per rank and
//! minibatch, as CleanRL does, unless `norm_adv_over = "world"`.
//!
//! Invariants:
//! - Every rank makes the same number of updates: the target-KL decision uses the KL averaged over all
//!   ranks.
//! - The host waits for the device at the end of an iteration, and of an epoch with a target KL, and not in
//!   an update. Before it waits for the device, it waits for the collectives that it began, which is bounded.

use super::batch::Batches;
use super::captured_update::{CapturableUpdate, CapturedUpdate, GraphSplitter};
use super::cpu_kernels::{CpuKernels, Engine, KernelLossStats};
use super::device_metrics::DeviceMetrics;
use super::on_policy::{Objective, OnPolicyAlgorithm, OnPolicyLearner, OptimizerStep};
use super::ppo_loss::{LossStats, PpoLoss};
use super::stop_points::WorkKind;
use super::{BuildContext, IterationStats, StepContext};
use crate::distributed::{Ddp, ReduceOp};
use crate::error::TrainerError;
use crate::policy::actor_critic::ForwardOptions;
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_types::learn::{NormAdv, PpoConfig as Settings};
use std::ops::ControlFlow;

/// The objective of proximal policy optimization.
pub(crate) struct PpoObjective {
    settings: Settings,
    loss: PpoLoss,
    engine: Engine,
    recording: CapturedUpdate,
    stats: LossStats,
}

impl PpoObjective {
    /// Collective, as [`super::make`].
    pub(crate) fn new(
        settings: &Settings,
        build: &BuildContext<'_>,
    ) -> Result<OnPolicyAlgorithm<PpoObjective>, TrainerError> {
        let minibatch = build.sizes.local_batch / settings.num_minibatches.max(1) as usize;
        let normalize = NormAdv::from_keys(settings.norm_adv, settings.norm_adv_over);
        let on = OnPolicyLearner::new(settings.into(), build)?;
        let mut engine = Engine::new(on.policy.layout(), build, normalize, minibatch)?;
        // Sequences are cut where episodes begin: each update is other work.
        let captured = build.experiment.policy.cuda_graphs && on.policy.layout().memory.is_none();
        let recording = CapturedUpdate::new("an update", build.device, captured);
        if let Engine::Libtorch(batches) = &mut engine
            && recording.is_enabled()
        {
            batches.in_turn()?;
        }
        let objective = PpoObjective {
            engine,
            settings: settings.clone(),
            loss: settings.into(),
            recording,
            stats: LossStats::default(),
        };
        Ok(OnPolicyAlgorithm { on, objective })
    }
}

/// An update by libtorch.
struct PpoUpdate<'a> {
    batches: &'a Batches,
    /// The number of the minibatch, where they do not come in turn.
    k: usize,
    on: &'a mut OnPolicyLearner,
    loss: &'a PpoLoss,
    clip: f64,
    stats: &'a mut LossStats,
}

impl CapturableUpdate for PpoUpdate<'_> {
    fn work(&mut self, cut: &mut GraphSplitter<'_>) -> Result<(), TrainerError> {
        let PpoUpdate { batches, on, .. } = self;
        let batch = if batches.are_in_turn() { batches.next()? } else { batches.get(self.k)? };
        let (output, split) = on.policy.forward_split(batch.input(), ForwardOptions::PLAIN, on.parts)?;
        let minibatch = self.loss.losses(&output, &batch)?;
        on.backward(&minibatch.total)?;
        cut.reduce_split(0, split, on.gradients())?;
        on.apply_gradients(OptimizerStep::Counted)?;
        Ok(self.stats.add(&minibatch, self.clip)?)
    }

    fn gradients(&mut self, _index: usize) -> &mut Ddp {
        self.on.gradients()
    }

    fn metrics(&mut self) -> &mut DeviceMetrics {
        self.on.metrics()
    }
}

/// The settings and the loss of one [`PpoObjective::learn`], whichever engine computes it.
struct Epochs<'a> {
    settings: &'a Settings,
    loss: &'a PpoLoss,
}

impl Epochs<'_> {
    fn with_libtorch(
        &self,
        (batches, recording, losses): (&mut Batches, &mut CapturedUpdate, &mut LossStats),
        on: &mut OnPolicyLearner,
        ctx: &StepContext<'_>,
        random: &mut Generator,
        stats: &mut IterationStats,
    ) -> Result<ControlFlow<()>, TrainerError> {
        batches.load(on.rollout(), &on.returns, on.seen())?;
        losses.restart()?;
        for _ in 0..self.settings.update_epochs {
            batches.start_epoch(&on.advantages, &on.rollout().weights, random, ctx.group)?;
            for k in 0..batches.count() {
                on.count_step(stats.learning_rate)?;
                let clip = self.settings.clip_coef;
                let mut update = PpoUpdate { batches, k, on, loss: self.loss, clip, stats: losses };
                recording.run(&mut update, batches.place(), ctx.group)?;
                losses.count();
                if on.updated(ctx, stats, WorkKind::Update)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            if self.settings.target_kl > 0.0 {
                ctx.group.settle()?;
            }
            if self.settings.target_kl > 0.0 && self.is_too_far(losses.approx_kl()?, ctx)? {
                break;
            }
        }
        ctx.group.settle()?;
        stats.losses = losses.stats()?;
        Ok(ControlFlow::Continue(()))
    }

    fn with_cpu_kernels(
        &self,
        native: &mut CpuKernels,
        on: &mut OnPolicyLearner,
        ctx: &StepContext<'_>,
        random: &mut Generator,
        stats: &mut IterationStats,
    ) -> Result<ControlFlow<()>, TrainerError> {
        let mut losses = KernelLossStats::default();
        native.start_iteration(ctx.iteration);
        for _ in 0..self.settings.update_epochs {
            native.start_epoch(on.rollout(), &on.advantages, &on.returns, random, ctx.group)?;
            for k in 0..native.count() {
                if native.update(k, (self.loss, true), on, ctx, stats, &mut losses)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            if self.settings.target_kl > 0.0 {
                let is_too_far = match native.approx_kl_over_blocks(ctx.group)? {
                    Some(kl) => kl > self.settings.target_kl,
                    None => self.is_too_far(losses.approx_kl(), ctx)?,
                };
                if is_too_far {
                    break;
                }
            }
        }
        stats.losses = native.losses(losses, ctx.group)?.stats();
        Ok(ControlFlow::Continue(()))
    }

    /// The KL estimate, averaged over all ranks, is over its bound.
    fn is_too_far(&self, kl: f64, ctx: &StepContext<'_>) -> Result<bool, TrainerError> {
        let mut kl = [kl];
        ctx.group.all_reduce_f64(&mut kl, ReduceOp::Avg, "target_kl")?;
        Ok(kl[0] > self.settings.target_kl)
    }
}

impl Objective for PpoObjective {
    fn learn(
        &mut self,
        on: &mut OnPolicyLearner,
        ctx: &StepContext<'_>,
        random: &mut Generator,
        stats: &mut IterationStats,
    ) -> Result<ControlFlow<()>, TrainerError> {
        let PpoObjective { settings, loss, engine, recording, stats: losses } = self;
        stats.planned = u64::from(settings.update_epochs) * u64::from(settings.num_minibatches);
        let epochs = Epochs { settings, loss };
        match engine {
            Engine::Libtorch(batches) => {
                epochs.with_libtorch((batches, recording, losses), on, ctx, random, stats)
            }
            Engine::CpuKernels(native) => epochs.with_cpu_kernels(native, on, ctx, random, stats),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algo::a2c::A2cObjective;
    use crate::algo::batch::Batches;
    use crate::algo::stop_points::StopPoints;
    use crate::algo::{Algorithm, ScalarStat};
    use crate::collect::rollout::{ActionBuffer, Rollout};
    use crate::distributed::{BackendKind, GroupSettings, ProcessGroup};
    use crate::env::Spec;
    use crate::policy::ActorCritic;
    use crate::policy::actor_critic::Layout;
    use crate::policy::trunk::Rows;
    use crate::support::page::StatusPage;
    use crate::support::state::AlgorithmState;
    use rankdeck_kernel::seeds::{Purpose, Seeds};
    use rankdeck_types::experiment::{Experiment, Kernel, Policy};
    use rankdeck_types::learn::{Learn, ValueLoss};
    use tch::{Device, Tensor};

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-5 * b.abs().max(1.0)
    }

    fn rows() -> Rows {
        Rows::of(&Policy::default())
    }

    fn alone() -> ProcessGroup {
        let settings = GroupSettings {
            rank: 0,
            world_size: 1,
            local_rank: 0,
            master_addr: String::new(),
            master_port: 0,
            backend: BackendKind::Tcp,
            timeout: std::time::Duration::from_secs(1),
            shared_memory: true,
            interface: None,
            generation: 0,
            secret: None,
            device: Device::Cpu,
            interrupt: None,
        };
        let page = rankdeck_proto::status_page::StatusPageWriter::anonymous(0, 0).unwrap();
        ProcessGroup::connect(&settings, StatusPage::new(page)).unwrap()
    }

    /// The losses, term by term in f64, from the definition.
    #[test]
    fn losses_equal_their_definition() {
        let spec = Spec::discrete(4, 2);
        let layout = Layout::new(&spec, &Policy { hidden: vec![16], ..Policy::default() }, false).unwrap();
        let seeds = Seeds::new(2);
        let mut random = seeds.generator(Purpose::Shuffle, 0, 0);
        let weights: Vec<f32> = (0..layout.len).map(|_| 0.5 * random.normal() as f32).collect();
        let mut policy = ActorCritic::new(layout.clone(), &seeds, Device::Cpu).unwrap();
        policy.copy_from(&weights).unwrap();
        let mut fast = crate::policy::actor_critic::DenseActorCritic::new(&layout, 1).unwrap();
        fast.load(&weights);
        let n = 64;
        let mut draw = |scale: f64, count: usize| -> Vec<f32> {
            (0..count).map(|_| (scale * random.normal()) as f32).collect()
        };
        let mut rollout = Rollout::new(&spec, n, 1, false);
        let (observations, advantages, returns) = (draw(1.0, 4 * n), draw(1.0, n), draw(1.0, n));
        rollout.observations = crate::env::ObservationBuffer::F32(observations.clone());
        rollout.log_probs = draw(0.4, n).iter().map(|l| l - 0.7).collect();
        rollout.values = draw(0.5, n);
        let actions: Vec<i64> = (0..n as i64).map(|i| i % 2).collect();
        rollout.actions = ActionBuffer::Discrete(actions.clone());
        let mut batches = Batches::new(NormAdv::Off, n, Device::Cpu, rows());
        batches.load(&rollout, &returns, None).unwrap();
        batches.start_epoch(&advantages, &rollout.weights, &mut random, &alone()).unwrap();
        let minibatch = batches.get(0).unwrap();
        for (clip_vloss, value_loss) in
            [(true, ValueLoss::Squared), (false, ValueLoss::Squared), (false, ValueLoss::Huber)]
        {
            let objective = PpoLoss { clip_coef: 0.2, clip_vloss, value_loss, ent_coef: 0.01, vf_coef: 0.5 };
            let output = policy.forward(&minibatch.observations, ForwardOptions::PLAIN).unwrap();
            let losses = objective.losses(&output, &minibatch).unwrap();
            let (mut surrogate, mut value, mut entropy, mut kl, mut clipped) = (0.0, 0.0, 0.0, 0.0, 0);
            for i in 0..n {
                fast.forward(&observations[4 * i..4 * i + 4], &mut [], &[]);
                let own = fast.values().row(0)[0];
                let logits: Vec<f64> = fast.scores().row(0).iter().map(|l| f64::from(*l)).collect();
                let total = logits.iter().map(|l| l.exp()).sum::<f64>().ln();
                let log_ratio = logits[actions[i] as usize] - total - f64::from(rollout.log_probs[i]);
                let (ratio, advantage) = (log_ratio.exp(), f64::from(advantages[i]));
                surrogate += (-advantage * ratio).max(-advantage * ratio.clamp(0.8, 1.2));
                kl += ratio - 1.0 - log_ratio;
                clipped += usize::from((ratio - 1.0).abs() > 0.2);
                let (new, old, goal) = (f64::from(own), f64::from(rollout.values[i]), f64::from(returns[i]));
                let half = |error: f64| match value_loss {
                    ValueLoss::Huber if error.abs() > 1.0 => error.abs() - 0.5,
                    _ => 0.5 * error * error,
                };
                let limited = half(old + (new - old).clamp(-0.2, 0.2) - goal);
                value += if clip_vloss { half(new - goal).max(limited) } else { half(new - goal) };
                entropy -= logits.iter().map(|l| (l - total).exp() * (l - total)).sum::<f64>();
            }
            let n = n as f64;
            let (surrogate, value, entropy) = (surrogate / n, value / n, entropy / n);
            assert!(close(losses.policy.double_value(&[]), surrogate));
            assert!(close(losses.value.double_value(&[]), value));
            assert!(close(losses.entropy.double_value(&[]), entropy));
            assert!(close(losses.total.double_value(&[]), surrogate - 0.01 * entropy + 0.5 * value));
            let mut stats = LossStats::default();
            stats.add(&losses, 0.2).unwrap();
            stats.count();
            assert!(clipped > 5 && close(stats.approx_kl().unwrap(), kl / n));
            let clip_share = stats.stats().unwrap()[5];
            assert!(clip_share.name == "losses/clipfrac" && close(clip_share.value, clipped as f64 / n));
        }
    }

    /// Rows that are not transitions change neither the loss nor the moments of the advantages.
    #[test]
    fn non_transition_rows_are_ignored() {
        let spec = Spec::discrete(1, 2);
        let mut rollout = Rollout::new(&spec, 4, 1, false);
        rollout.weights[2] = 0.0;
        let mut batches = Batches::new(NormAdv::Rank, 4, Device::Cpu, rows());
        batches.load(&rollout, &[0.0; 4], None).unwrap();
        let mut random = Seeds::new(0).generator(Purpose::Shuffle, 0, 0);
        batches.start_epoch(&[1.0, 2.0, 1e6, 3.0], &rollout.weights, &mut random, &alone()).unwrap();
        let batch = batches.get(0).unwrap();
        assert!(
            close(batch.advantages.double_value(&[0]), -1.0)
                && close(batch.advantages.double_value(&[3]), 1.0)
        );
        assert!(close(
            batch.mean(&Tensor::from_slice(&[1.0_f32, 1.0, 1e9, 2.0])).unwrap().double_value(&[]),
            1.0
        ));
    }

    /// The parameters after `iterations` iterations on one rank, and the last losses.
    fn trained(env: &str, rest: &str, kernel: &str, iterations: u64) -> (Vec<f32>, Vec<ScalarStat>) {
        let text = format!(
            "[run]\nname = 'x'\ntotal_steps = 50000\n[env]\nid = '{env}'\nnum_envs = 3\n[collect]\nnum_steps = 32\n\
         [policy]\nhidden = [24, 16]\nkernel = '{kernel}'\n{rest}\n"
        );
        let experiment: rankdeck_types::experiment::Experiment = toml::from_str(&text).unwrap();
        let (env, learn) = crate::startup::setup::parts(&experiment).unwrap();
        let group = alone();
        let envs = crate::env::EnvFactory::open(env).unwrap();
        let build = BuildContext {
            experiment: &experiment,
            envs: &envs,
            sizes: crate::startup::setup::Sizes::resolve(&experiment, 0, 1).unwrap(),
            spec: envs.spec().clone(),
            seeds: Seeds::new(7),
            device: Device::Cpu,
            group: &group,
            start_iteration: 0,
        };
        let native =
            |engine: &Engine| assert_eq!(matches!(engine, Engine::CpuKernels(_)), kernel != "libtorch");
        let mut algorithm: Box<dyn Algorithm> = match learn {
            Learn::Ppo(settings) => {
                let ppo = PpoObjective::new(settings, &build).unwrap();
                native(&ppo.objective.engine);
                Box::new(ppo)
            }
            Learn::A2c(settings) => {
                let a2c = A2cObjective::new(settings, &build).unwrap();
                native(&a2c.objective.engine);
                Box::new(a2c)
            }
            other => panic!("{other:?}"),
        };
        let page = StatusPage::new(rankdeck_proto::status_page::StatusPageWriter::anonymous(0, 0).unwrap());
        let mut losses = Vec::new();
        for iteration in 0..iterations {
            let ctx = StepContext {
                group: &group,
                page: &page,
                iteration,
                num_iterations: Some(500),
                updates: 0,
                env_step: 96 * iteration,
                stop: &StopPoints::default(),
            };
            losses = algorithm.iterate(&ctx).unwrap().losses;
        }
        let model =
            algorithm.state().unwrap().arrays.into_iter().filter(|array| array.name.starts_with("model."));
        (model.flat_map(|array| array.values).collect(), losses)
    }

    /// The hand-written passes and libtorch make the same iterations: the same actions, and weights that
    /// differ by rounding only.
    #[test]
    fn both_engines_learn_the_same() {
        for (env, rest) in [
            ("CartPole-v1", "[learn]\nalgorithm = 'ppo'"),
            (
                "CartPole-v1",
                "activation = 'relu'\nshared = true\n[learn]\nalgorithm = 'ppo'\nvalue_loss = 'huber'",
            ),
            (
                "Pendulum-v1",
                "log_std = -0.5\n[learn]\nalgorithm = 'ppo'\nclip_vloss = false\nnorm_adv = false",
            ),
            ("CartPole-v1", "shared = true\n[learn]\nalgorithm = 'a2c'\nent_coef = 0.01"),
            (
                "CartPole-v1",
                "memory = 'lstm'\nmemory_size = 6\n[learn]\nalgorithm = 'ppo'\nnum_minibatches = 3",
            ),
            (
                "CartPole-v1",
                "memory = 'mingru'\nmemory_size = 20\n[learn]\nalgorithm = 'ppo'\nnum_minibatches = 3",
            ),
            (
                "Pendulum-v1",
                "memory = 'lstm'\nmemory_size = 17\n[learn]\nalgorithm = 'a2c'\nvalue_loss = 'huber'",
            ),
            ("Pendulum-v1", "[learn]\nalgorithm = 'a2c'\nvalue_loss = 'huber'\nnorm_adv = true"),
        ] {
            let ((native, report), (libtorch, expected)) =
                (trained(env, rest, "auto", 3), trained(env, rest, "libtorch", 3));
            let (start, _) = trained(env, rest, "auto", 0);
            let apart =
                |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart(&native, &start) > 1e-3, "{env} learns");
            assert!(apart(&native, &libtorch) < 2e-5, "{env} {rest}: {}", apart(&native, &libtorch));
            for (a, b) in report.iter().zip(&expected) {
                let close = (a.value - b.value).abs() < 1e-3 * b.value.abs().max(1.0);
                assert!(a.name == b.name && a.is_loss == b.is_loss && close, "{env}: {a:?}, {b:?}");
            }
        }
    }

    /// The sequences of minibatches give what the policy gave step by step, over the ends of episodes and from the
    /// states in the middle of them.
    #[test]
    fn minibatches_with_memory_give_what_was_collected() {
        for memory in ["lstm", "mingru"] {
            let text = format!(
                "[run]\nname = 'x'\ntotal_steps = 50000\n[env]\nid = 'rankdeck/CartPoleNoVelocity-v1'\nnum_envs = 6\n\
                 [collect]\nnum_steps = 40\n[policy]\nhidden = [12]\nkernel = 'libtorch'\nmemory = '{memory}'\nmemory_size = 8\n\
                 [learn]\nalgorithm = 'ppo'\nlearning_rate = 0.0\nnum_minibatches = 3\n"
            );
            let experiment: Experiment = toml::from_str(&text).unwrap();
            let (env, learn) = crate::startup::setup::parts(&experiment).unwrap();
            let group = alone();
            let envs = crate::env::EnvFactory::open(env).unwrap();
            let build = BuildContext {
                experiment: &experiment,
                envs: &envs,
                sizes: crate::startup::setup::Sizes::resolve(&experiment, 0, 1).unwrap(),
                spec: envs.spec().clone(),
                seeds: Seeds::new(7),
                device: Device::Cpu,
                group: &group,
                start_iteration: 0,
            };
            let Learn::Ppo(settings) = learn else { panic!("not PPO") };
            let mut ppo = PpoObjective::new(settings, &build).unwrap();
            let page =
                StatusPage::new(rankdeck_proto::status_page::StatusPageWriter::anonymous(0, 0).unwrap());
            for iteration in 0..2 {
                let ctx = StepContext {
                    group: &group,
                    page: &page,
                    iteration,
                    num_iterations: None,
                    updates: 0,
                    env_step: 240 * iteration,
                    stop: &StopPoints::default(),
                };
                ppo.iterate(&ctx).unwrap();
            }
            assert!(ppo.on.rollout().resets.contains(&true));
            assert!(ppo.on.rollout().states.iter().any(|number| *number != 0.0));
            let Engine::Libtorch(batches) = &ppo.objective.engine else { panic!("not by libtorch") };
            assert_eq!(batches.count(), 3);
            for k in 0..3 {
                let batch = batches.get(k).unwrap();
                let (output, _) =
                    ppo.on.policy.forward_split(batch.input(), ForwardOptions::PLAIN, false).unwrap();
                let log_probs = output.distribution.log_prob(&batch.actions).unwrap();
                for (own, collected) in [(output.values, &batch.values), (log_probs, &batch.log_probs)] {
                    let apart = (own - collected).abs().max().double_value(&[]);
                    assert!(apart < 1e-5, "{memory}: {apart}");
                }
            }
        }
    }

    /// What each array of two states differs by most, relative to its largest magnitude.
    fn differences(a: &AlgorithmState, b: &AlgorithmState) -> Vec<(String, f32)> {
        let largest = |values: &mut dyn Iterator<Item = f32>| values.fold(0.0_f32, |a, b| a.max(b.abs()));
        let arrays = a.arrays.iter().zip(&b.arrays);
        arrays
            .map(|(a, b)| {
                let apart = largest(&mut a.values.iter().zip(&b.values).map(|(a, b)| a - b));
                (a.name.clone(), apart / largest(&mut a.values.iter().copied()).max(f32::MIN_POSITIVE))
            })
            .collect()
    }

    /// A2C with the shipped settings, whole iterations of acting, normalized rewards and updates: weights,
    /// log_std and Adam's moments of both engines differ by rounding only.
    #[test]
    fn a2c_on_pendulum_learns_the_same_by_both_engines() {
        let run = |kernel| {
            let mut experiment: Experiment =
                toml::from_str(include_str!("../../../configs/pendulum_a2c.toml")).unwrap();
            experiment.policy.kernel = kernel;
            let (env, learn) = crate::startup::setup::parts(&experiment).unwrap();
            let group = alone();
            let envs = crate::env::EnvFactory::open(env).unwrap();
            let build = BuildContext {
                experiment: &experiment,
                envs: &envs,
                sizes: crate::startup::setup::Sizes::resolve(&experiment, 0, 1).unwrap(),
                spec: envs.spec().clone(),
                seeds: Seeds::new(1),
                device: Device::Cpu,
                group: &group,
                start_iteration: 0,
            };
            let Learn::A2c(settings) = learn else { panic!("not A2C") };
            let mut a2c = A2cObjective::new(settings, &build).unwrap();
            let page =
                StatusPage::new(rankdeck_proto::status_page::StatusPageWriter::anonymous(0, 0).unwrap());
            let start = a2c.state().unwrap();
            for iteration in 0..5 {
                let ctx = StepContext {
                    group: &group,
                    page: &page,
                    iteration,
                    num_iterations: build.sizes.num_iterations,
                    updates: iteration,
                    env_step: iteration * build.sizes.batch,
                    stop: &StopPoints::default(),
                };
                a2c.iterate(&ctx).unwrap();
            }
            (start, a2c.state().unwrap())
        };
        let ((start, native), (_, libtorch)) = (run(Kernel::Native), run(Kernel::Libtorch));
        for ((name, moved), (_, apart)) in
            differences(&native, &start).iter().zip(differences(&native, &libtorch))
        {
            assert!(*moved > 1e-3, "{name} learns: {moved}");
            assert!(apart < 1e-4, "{name}: {apart}");
        }
    }

    /// RECORDING-1. Minibatches in turn, as captured updates take them, are those by number, in every
    /// rollout.
    #[test]
    fn minibatches_in_turn_are_those_by_number() {
        let spec = Spec::discrete(3, 2);
        let made = || Batches::new(NormAdv::Off, 2, Device::Cpu, rows());
        let (mut by_number, mut in_turn) = (made(), made());
        in_turn.in_turn().unwrap();
        let mut place = 0;
        for round in 1..4_u16 {
            let mut rollout = Rollout::new(&spec, 4, 2, false);
            let fill = |values: &mut [f32], by: f32| {
                values
                    .iter_mut()
                    .enumerate()
                    .for_each(|(i, value)| *value = i as f32 * by * f32::from(round));
            };
            fill(&mut rollout.values, 0.5);
            fill(&mut rollout.log_probs, -0.25);
            let (returns, advantages): (Vec<f32>, Vec<f32>) =
                (0..8).map(|i| (f32::from(round) + i as f32, i as f32 - f32::from(round))).unzip();
            by_number.load(&rollout, &returns, None).unwrap();
            in_turn.load(&rollout, &returns, None).unwrap();
            assert!(place == 0 || place == in_turn.place(), "a rollout lies where the one before lay");
            place = in_turn.place();
            for epoch in 0..2 {
                let random = || Seeds::new(u64::from(round)).generator(Purpose::Shuffle, 0, epoch);
                let group = alone();
                for batches in [&mut by_number, &mut in_turn] {
                    batches.start_epoch(&advantages, &rollout.weights, &mut random(), &group).unwrap();
                }
                for k in 0..by_number.count() {
                    let (a, b) = (by_number.get(k).unwrap(), in_turn.next().unwrap());
                    for (a, b) in [
                        (&a.observations, &b.observations),
                        (&a.actions, &b.actions),
                        (&a.log_probs, &b.log_probs),
                        (&a.values, &b.values),
                        (&a.advantages, &b.advantages),
                        (&a.returns, &b.returns),
                    ] {
                        assert_eq!(a, b);
                    }
                    assert_eq!(a.mean(&a.values).unwrap(), b.mean(&b.values).unwrap());
                }
            }
        }
    }
}
