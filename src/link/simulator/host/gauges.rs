//! The gauges of a simulated host, as an agent would sample them.

use super::{Process, SimHost};
use crate::simulator::chance::chance;
use crate::simulator::fault::FaultKind;
use crate::simulator::simulated_training::{self as training, Life, Moment};
use rankdeck_proto::message::{
    ChildSample, GpuSample, HostSample, HostSignals, PageSample, Phase, RankSample, RankSignals,
};
use tokio::time::Instant;

const GIB: u64 = 1 << 30;
/// Processes of each rank that compute its environments.
const WORKERS: u32 = 2;

impl SimHost {
    pub(super) fn sample(&self, life: &Life, now: Instant) -> HostSample {
        let moment = life.moment(self.scene(), now);
        let beat = (now - self.began).as_millis() as u64;
        let noise = |key: u64| {
            chance(self.scene().seed ^ (u64::from(self.node.0) << 40), beat / 500 * 64 + key) as f32
        };
        let ranks: Vec<RankSample> = self
            .processes
            .iter()
            .enumerate()
            .filter(|(_, process)| !matches!(process, Process::Exited(_)))
            .map(|(local, _)| self.rank_sample(life, local, moment, now, noise(local as u64)))
            .collect();
        HostSample {
            mono_ms: 1_000_000 + beat,
            wall_time: self.time(),
            generation: life.generation,
            cpu_percent: 4.0 + 90.0 * ranks.len() as f32 / 64.0 + noise(60),
            cpu_count: 64,
            memory_used: (24 + 3 * ranks.len() as u64) * GIB,
            memory_total: 256 * GIB,
            load1: ranks.len() as f32 + noise(61),
            gpus: if self.scene().gpus { self.gpus(&ranks, noise(62)) } else { Vec::new() },
            ranks,
            users: Vec::new(),
            dropped: 0,
            malformed: 0,
            withheld: 0,
            signals: HostSignals::default(),
        }
    }

    fn rank_sample(
        &self,
        life: &Life,
        local: usize,
        moment: Option<Moment>,
        now: Instant,
        noise: f32,
    ) -> RankSample {
        let rank = self.rank(local);
        let slow = life.slow_rank(self.scene(), now);
        let began = moment.map(|moment| life.began(self.scene(), rank, moment, now));
        let own_ms = moment.map(|moment| training::own_ms(life, self.scene(), rank, moment, now));
        let own_ms = own_ms.unwrap_or_default();
        // They compute while their rank collects, and stand still with it.
        let worker = |number: u32| ChildSample {
            pid: self.pid(local) * 10 + number,
            name: "python3".to_owned(),
            state: 'S',
            cpu_ms: own_ms.get(Phase::Rollout as usize).copied().unwrap_or(0),
            parent: self.pid(local),
            ..ChildSample::default()
        };
        let children = (0..WORKERS).map(worker).collect();
        let page = training::page(self.scene(), rank, moment, slow);
        let kind =
            moment.and_then(|moment| moment.hang).filter(|hang| hang.rank == rank).map(|hang| hang.kind);
        let (state, cpu, wchan) = match kind {
            Some(FaultKind::Freeze) => ('T', 0.0, "do_signal_stop"),
            Some(FaultKind::EnvStuck) => ('S', 0.0, "pipe_read"),
            Some(_) => ('R', 100.0, ""),
            None => ('R', 92.0 + 8.0 * noise, ""),
        };
        RankSample {
            rank,
            pid: self.pid(local),
            state,
            cpu_percent: cpu,
            rss: 3 * GIB + (f64::from(noise) * 1e8) as u64,
            children: WORKERS,
            wchan: wchan.to_owned(),
            gpu: self.scene().gpus.then_some(local as u32),
            gpu_memory: self.scene().gpus.then_some(9 * GIB),
            gpu_share: None,
            page: Some(PageSample { iterations: began.into_iter().collect(), own_ms, ..page }),
            signals: RankSignals { children, ..RankSignals::default() },
        }
    }

    fn gpus(&self, ranks: &[RankSample], noise: f32) -> Vec<GpuSample> {
        (0..self.scene().ranks_per_host)
            .map(|index| {
                let rank = ranks.iter().find(|rank| rank.gpu == Some(index));
                let busy =
                    rank.map_or(0.0, |rank| if rank.cpu_percent > 50.0 { 70.0 + 28.0 * noise } else { 0.0 });
                GpuSample {
                    index,
                    name: "NVIDIA H100 80GB HBM3 (simulated)".to_owned(),
                    utilization: Some(busy as u32),
                    memory_used: rank.and_then(|rank| rank.gpu_memory).unwrap_or(0) + GIB / 2,
                    memory_total: 80 * GIB,
                    power_w: Some(90.0 + 5.5 * busy),
                    power_limit_w: Some(700.0),
                    temperature_c: Some(35 + (busy * 0.35) as u32),
                    sm_clock_mhz: Some(if busy > 1.0 { 1980 } else { 345 }),
                    memory_clock_mhz: Some(2619),
                    throttle: Vec::new(),
                    processes: rank.map(|rank| (rank.pid, 9 * GIB)).into_iter().collect(),
                    ..GpuSample::default()
                }
            })
            .collect()
    }
}
