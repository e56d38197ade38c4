//! Unknown keys: a typo, a key of another table or file, or another tool's key.

use super::Scope;
use crate::diagnostic::Diagnostic;
use crate::document::{TomlEntry, TomlValue};
use crate::suggest::{closest, nearly};
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::Hosts;
use rankdeck_types::schema::{self, ConfigKey, Keys, ValueKind};

/// Returns the error for an unknown key, with the likely fix.
pub(super) fn unknown(
    name: &str,
    entry: &TomlEntry,
    keys: impl Iterator<Item = &'static ConfigKey> + Clone,
    scope: &Scope,
) -> Diagnostic {
    let message = match scope.title.as_str() {
        "" => format!("unknown key `{name}`"),
        title => format!("unknown key `{name}` in `{title}`"),
    };
    let names = || keys.clone().map(|key| key.name);
    let near = closest(name, names());
    // A key of the other file is not a typo: `venv` is not `env`.
    let is_known = || home_of(name, other_file(scope.top).0, "").is_some();
    let typing = near.filter(|near| nearly(name, near) && !is_known());
    let hint = match typing {
        Some(near) => match keys.clone().find(|key| key.name == near).map(|key| &key.kind) {
            Some(ValueKind::Tables(_)) => format!("write `[[{near}]]`, once per {near}"),
            Some(ValueKind::Table(_) | ValueKind::Tagged { .. }) if entry.node.table().is_some() => {
                format!("write `[{near}]`")
            }
            _ => format!("a similar key exists: `{near}`"),
        },
        None => elsewhere_hint(name, entry, scope).unwrap_or_else(|| match near {
            Some(near) => format!("a similar key exists: `{near}`"),
            None => {
                let list: Vec<String> = names().map(|name| format!("`{name}`")).collect();
                format!("known keys here: {}", list.join(", "))
            }
        }),
    };
    Diagnostic::at(&entry.key, message).label("unknown key").hint(hint)
}

/// Returns the hint for a key that is not a typo.
fn elsewhere_hint(name: &str, entry: &TomlEntry, scope: &Scope) -> Option<String> {
    if let Some(home) = home_of(name, scope.top, &scope.title) {
        return Some(format!("`{name}` belongs in `{home}`"));
    }
    if ["base", "use", "section"].contains(&name) && !scope.title.is_empty() {
        return Some(format!("move `{name}` to the top of the file, before the first `[table]`"));
    }
    let is_table = scope.title.is_empty()
        && match &entry.node.value {
            TomlValue::Table(_) => true,
            TomlValue::Array(items) => items.iter().any(|item| item.table().is_some()),
            _ => false,
        };
    let (other, file) = other_file(scope.top);
    if is_table && let Some(key) = other.iter().find(|key| key.name == name) {
        return Some(format!("`{}` belongs in {file}", title(key)));
    }
    // A table of another tool: its keys are more specific than its name.
    if let TomlValue::Table(table) = &entry.node.value
        && scope.title.is_empty()
        && let Some(hint) = table.keys().find_map(|key| match home_of(key, scope.top, "") {
            Some(home) => Some(format!("`{key}` belongs in `{home}`")),
            None => alias_hint(key).map(|hint| format!("`{key}`: {hint}")),
        })
    {
        return Some(hint);
    }
    if let Some(hint) = alias_hint(name) {
        return Some(hint.to_owned());
    }
    if let Some(ConfigKey { kind: ValueKind::Table(keys), .. }) =
        scope.top.iter().find(|key| key.name == name)
    {
        let keys: Vec<String> = keys.iter().map(|key| format!("`{}`", key.name)).collect();
        return Some(format!("`[{name}]` is a separate table with {}", keys.join(", ")));
    }
    home_of(name, other, "").map(|home| format!("`{name}` belongs in `{home}` of {file}"))
}

/// Returns the schema of the other file, and its name.
fn other_file(top: Keys) -> (Keys, &'static str) {
    match top.iter().any(|key| key.name == "host") {
        true => (Experiment::KEYS, "the experiment"),
        false => (Hosts::KEYS, "hosts.toml"),
    }
}

fn title(key: &ConfigKey) -> String {
    match key.kind {
        ValueKind::Tables(_) => format!("[[{}]]", key.name),
        _ => format!("[{}]", key.name),
    }
}

/// Returns the table with a key of this name, unless it is `own`.
fn home_of(name: &str, top: Keys, own: &str) -> Option<String> {
    let found = |key: &ConfigKey| schema::find(top, &[key.name, name]);
    top.iter()
        .filter(|key| title(key) != own && found(key).is_some())
        // The table that requires it; `[[host]]` before `[defaults]`.
        .max_by_key(|key| found(key).is_some_and(ConfigKey::is_required))
        .map(title)
}

/// Returns the hint for another tool's key; `None` if the key is unknown.
fn alias_hint(name: &str) -> Option<&'static str> {
    let plain = name.trim_start_matches("--").replace('-', "_").to_lowercase();
    ALIASES.iter().find(|(names, _)| names.contains(&plain.as_str())).map(|(_, hint)| *hint)
}

/// Keys of torchrun, CleanRL, Stable-Baselines3, Hydra, DeepSpeed, accelerate and SkyPilot, with the keys to
/// use instead.
const ALIASES: &[(&[&str], &str)] = &[
    (
        &[
            "nproc",
            "nproc_per_node",
            "num_processes",
            "num_workers",
            "ntasks_per_node",
            "procs_per_node",
            "world_size",
        ],
        "use `nproc` in hosts.toml or `--nproc N` for the ranks per host; the world size follows",
    ),
    (
        &["nnodes", "num_nodes", "num_machines", "nodes", "hosts", "hostfile", "machines"],
        "list each machine as a `[[host]]` in hosts.toml, or pass `--hosts a,b`",
    ),
    (
        &["node_rank", "machine_rank", "rank", "local_rank"],
        "remove it: ranks follow the order of `[[host]]` in hosts.toml",
    ),
    (
        &["num_gpus", "gpu", "gpus_per_node", "gpu_ids", "cuda", "device", "devices", "accelerators"],
        "use `gpus` of a host in hosts.toml: `\"all\"`, a count or a list",
    ),
    (
        &["rdzv_endpoint", "main_process_ip", "master_address", "dist_url", "init_method"],
        "remove it, or set `launch.master_addr` for rank 0's address",
    ),
    (&["main_process_port", "rdzv_port"], "remove it, or set `launch.master_port` for rank 0's port"),
    (
        &["rdzv_backend", "rdzv_id", "rdzv_conf", "standalone"],
        "remove it: the rendezvous needs no configuration",
    ),
    (&["max_restarts", "restarts", "max_retries"], "use `[restart]`"),
    (&["dist_backend", "ddp_backend"], "use `distributed.backend`"),
    (&["env_id", "env_name", "gym_id", "environment"], "use `id` in `[env]`: `id = \"CartPole-v1\"`"),
    (&["n_envs", "num_env", "n_env", "parallel_envs"], "use `num_envs` in `[env]`, over all ranks"),
    (
        &[
            "total_timesteps",
            "num_timesteps",
            "max_timesteps",
            "timesteps",
            "total_env_steps",
            "max_steps_total",
        ],
        "use `total_steps` in `[run]`",
    ),
    (
        &[
            "exp_name",
            "experiment_name",
            "run_name",
            "job_name",
            "project",
            "wandb_project",
            "wandb_project_name",
        ],
        "use `name` in `[run]`: `name = \"ppo\"`",
    ),
    (&["n_steps", "rollout_length", "rollout_steps", "horizon"], "use `num_steps` in `[collect]`"),
    (&["lr", "alpha_lr", "step_size"], "use `learning_rate` in `[learn]`"),
    (&["clip_range", "clip_param", "clip_ratio", "eps_clip", "clip_epsilon"], "use `clip_coef` in `[learn]`"),
    (&["n_epochs", "ppo_epochs", "num_epochs", "k_epochs", "epochs"], "use `update_epochs` in `[learn]`"),
    (&["entropy_coef", "entropy_coeff", "entropy_cost", "ent_weight"], "use `ent_coef` in `[learn]`"),
    (&["value_coef", "value_loss_coef", "vf_loss_coeff", "critic_coef"], "use `vf_coef` in `[learn]`"),
    (&["lam", "lambda_", "gae_lam"], "use `gae_lambda` in `[learn]`"),
    (&["discount", "discount_factor"], "use `gamma` in `[learn]`"),
    (&["grad_clip", "gradient_clip", "clip_grad_norm"], "use `max_grad_norm` in `[learn]`"),
    (&["replay_size", "replay_buffer_size", "memory_size"], "use `buffer_size` in `[learn]`"),
    (
        &["target_update", "target_update_interval", "target_network_frequency"],
        "use `target_every` of `dqn` in `[learn]`",
    ),
    (&["algo", "algorithm_name", "policy_class"], "use `algorithm` in `[learn]`"),
    (
        &["net_arch", "hidden_sizes", "hidden_dim", "hidden_size"],
        "use `hidden` in `[policy]`: `hidden = [64, 64]`",
    ),
    (
        &["eval_freq", "eval_interval", "evaluation_interval"],
        "use `every` in `[eval]`, in training iterations",
    ),
    (&["n_eval_episodes", "eval_episodes", "num_eval_episodes"], "use `episodes` in `[eval]`"),
    (
        &["save_freq", "save_interval", "checkpoint_freq", "save_every", "checkpoint_interval"],
        "use `every` in `[checkpoint]`, in training iterations",
    ),
    (
        &["torch_deterministic", "deterministic"],
        "remove it: runs of the built-in trainer are deterministic by default",
    ),
    (
        &["track", "wandb", "wandb_entity", "use_wandb", "logger"],
        "remove it; for W&B in your script, set `launch.pass_env = [\"WANDB_API_KEY\"]`",
    ),
    (&["capture_video", "render", "render_mode", "verbose"], "remove it: not supported"),
    (
        &[
            "script",
            "entrypoint",
            "entry_point",
            "main",
            "program",
            "module",
            "cmd",
            "args",
            "script_args",
            "run_cmd",
        ],
        "use `command` in `[launch]`: `command = [\"python\", \"train.py\"]`",
    ),
    (
        &["cwd", "working_dir", "workspace", "source_dir", "code_dir"],
        "use `code` in `[launch]` for the directory to upload",
    ),
    (
        &["envs", "environment_variables", "env_vars", "secrets", "export"],
        "use `env` in `[launch]`, or `pass_env` for secrets of this console",
    ),
    (&["setup", "setup_commands", "before_script", "pre_script"], "use `prelude` of a host in hosts.toml"),
    (&["virtualenv", "venv_path", "python_path", "interpreter"], "use `venv` of a host in hosts.toml"),
    (&["conda_env", "conda_environment"], "use `conda` of a host in hosts.toml"),
    (&["image", "docker_image", "image_id", "singularity"], "use `container` of a host in hosts.toml"),
    (
        &["defaults", "extends", "inherit", "include", "_base_"],
        "use `base = \"other.toml\"`, at the top of the file",
    ),
    (
        &["hydra", "override", "overrides", "multirun"],
        "override keys with `--set KEY=VALUE`, and unset them with `--set ~KEY`",
    ),
    (
        &["partition", "account", "qos", "time", "mem", "cpus_per_task", "time_limit"],
        "pass Slurm options after `--`: `rankdeck sbatch EXPERIMENT.toml -- --partition=gpu`",
    ),
    (&["num_threads", "omp_num_threads", "cpus"], "use `threads` in `[launch]`"),
    (
        &["mixed_precision", "fp16", "bf16", "zero_optimization", "gradient_accumulation_steps", "compile"],
        "remove it: the built-in trainer does not support it; configure it in your own script",
    ),
    (&["ssh_key", "key_file", "private_key", "identity", "key"], "use `identity_file` of a host"),
    (
        &["password", "passphrase", "ssh_password"],
        "passwords are not stored: install a key with `ssh-copy-id`, and set `identity_file` or use an ssh-agent",
    ),
    (&["username", "login", "ssh_user"], "use `user` of a host"),
    (&["hostname", "ip", "host_name", "ip_address"], "use `address` of a host"),
    (&["ssh_port"], "use `port` of a host"),
    (&["jump_host", "bastion", "proxyjump", "gateway"], "use `proxy_jump` of a host"),
    (&["slots", "max_slots"], "use `nproc` of a host"),
    (
        &["iface", "nic", "network_interface", "nccl_socket_ifname", "gloo_socket_ifname"],
        "use `interface` of a host",
    ),
];
