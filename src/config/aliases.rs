//! What other tools call our keys: hints for people who come from torchrun, CleanRL, Stable-Baselines3,
//! Hydra, DeepSpeed, accelerate or SkyPilot.

/// What a key of elsewhere is here, as a hint; `None` for a word that no tool known here uses.
pub fn elsewhere(name: &str) -> Option<&'static str> {
    let plain = name.trim_start_matches("--").replace('-', "_").to_lowercase();
    ALIASES.iter().find(|(names, _)| names.contains(&plain.as_str())).map(|(_, hint)| *hint)
}

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
        "ranks per host are `nproc` in hosts.toml, or `--nproc N`; the world size follows",
    ),
    (
        &["nnodes", "num_nodes", "num_machines", "nodes", "hosts", "hostfile", "machines"],
        "each machine is a `[[host]]` in hosts.toml, or `--hosts a,b`",
    ),
    (
        &["node_rank", "machine_rank", "rank", "local_rank"],
        "nobody types a rank: the order of `[[host]]` in hosts.toml decides",
    ),
    (
        &["num_gpus", "gpu", "gpus_per_node", "gpu_ids", "cuda", "device", "devices", "accelerators"],
        "GPUs are `gpus` of a host in hosts.toml: `gpus = \"all\"`, a count or a list",
    ),
    (
        &["rdzv_endpoint", "main_process_ip", "master_address", "dist_url", "init_method"],
        "rank 0's address is `launch.master_addr`; it need not be set",
    ),
    (&["main_process_port", "rdzv_port"], "rank 0's port is `launch.master_port`; it need not be set"),
    (&["rdzv_backend", "rdzv_id", "rdzv_conf", "standalone"], "the rendezvous needs no key: remove it"),
    (&["max_restarts", "restarts", "max_retries"], "restarts are decided in `[restart]`"),
    (&["dist_backend", "ddp_backend"], "it is `distributed.backend`"),
    (&["env_id", "env_name", "gym_id", "environment"], "it is `id` in `[env]`: `id = \"CartPole-v1\"`"),
    (&["n_envs", "num_env", "n_env", "parallel_envs"], "it is `num_envs` in `[env]`, over all ranks"),
    (
        &[
            "total_timesteps",
            "num_timesteps",
            "max_timesteps",
            "timesteps",
            "total_env_steps",
            "max_steps_total",
        ],
        "it is `total_steps` in `[run]`",
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
        "the run's name is `name` in `[run]`: `name = \"ppo\"`",
    ),
    (&["n_steps", "rollout_length", "rollout_steps", "horizon"], "it is `num_steps` in `[collect]`"),
    (&["lr", "alpha_lr", "step_size"], "it is `learning_rate` in `[learn]`"),
    (
        &["clip_range", "clip_param", "clip_ratio", "eps_clip", "clip_epsilon"],
        "it is `clip_coef` in `[learn]`",
    ),
    (&["n_epochs", "ppo_epochs", "num_epochs", "k_epochs", "epochs"], "it is `update_epochs` in `[learn]`"),
    (&["entropy_coef", "entropy_coeff", "entropy_cost", "ent_weight"], "it is `ent_coef` in `[learn]`"),
    (&["value_coef", "value_loss_coef", "vf_loss_coeff", "critic_coef"], "it is `vf_coef` in `[learn]`"),
    (&["lam", "lambda_", "gae_lam"], "it is `gae_lambda` in `[learn]`"),
    (&["discount", "discount_factor"], "it is `gamma` in `[learn]`"),
    (&["grad_clip", "gradient_clip", "clip_grad_norm"], "it is `max_grad_norm` in `[learn]`"),
    (&["replay_size", "replay_buffer_size", "memory_size"], "it is `buffer_size` in `[learn]`"),
    (
        &["target_update", "target_update_interval", "target_network_frequency"],
        "it is `target_every` of `dqn` in `[learn]`",
    ),
    (&["algo", "algorithm_name", "policy_class"], "it is `algorithm` in `[learn]`"),
    (
        &["net_arch", "hidden_sizes", "hidden_dim", "hidden_size"],
        "it is `hidden` in `[policy]`: `hidden = [64, 64]`",
    ),
    (
        &["eval_freq", "eval_interval", "evaluation_interval"],
        "it is `every` in `[eval]`, in training iterations",
    ),
    (&["n_eval_episodes", "eval_episodes", "num_eval_episodes"], "it is `episodes` in `[eval]`"),
    (
        &["save_freq", "save_interval", "checkpoint_freq", "save_every", "checkpoint_interval"],
        "it is `every` in `[checkpoint]`, in training iterations",
    ),
    (
        &["torch_deterministic", "deterministic"],
        "the built-in trainer repeats a run bit by bit anyway: remove it",
    ),
    (
        &["track", "wandb", "wandb_entity", "use_wandb", "logger"],
        "rankdeck draws its own charts; for W&B in your script: `launch.pass_env = [\"WANDB_API_KEY\"]`",
    ),
    (&["capture_video", "render", "render_mode", "verbose"], "there is no such key: remove it"),
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
        "the program is `command` in `[launch]`: `command = [\"python\", \"train.py\"]`",
    ),
    (
        &["cwd", "working_dir", "workspace", "source_dir", "code_dir"],
        "the folder that is copied is `code` in `[launch]`",
    ),
    (
        &["envs", "environment_variables", "env_vars", "secrets", "export"],
        "variables are `env` in `[launch]`, and `pass_env` for secrets of this console",
    ),
    (&["setup", "setup_commands", "before_script", "pre_script"], "it is `prelude` of a host in hosts.toml"),
    (&["virtualenv", "venv_path", "python_path", "interpreter"], "it is `venv` of a host in hosts.toml"),
    (&["conda_env", "conda_environment"], "it is `conda` of a host in hosts.toml"),
    (&["image", "docker_image", "image_id", "singularity"], "it is `container` of a host in hosts.toml"),
    (
        &["defaults", "extends", "inherit", "include", "_base_"],
        "it is `base = \"other.toml\"`, at the top of the file",
    ),
    (
        &["hydra", "override", "overrides", "multirun"],
        "overrides are given as `--set KEY=VALUE`, and `--set ~KEY` removes",
    ),
    (
        &["partition", "account", "qos", "time", "mem", "cpus_per_task", "time_limit"],
        "options of Slurm go behind `--`: `rankdeck sbatch EXPERIMENT.toml -- --partition=gpu`",
    ),
    (&["num_threads", "omp_num_threads", "cpus"], "it is `threads` in `[launch]`"),
    (
        &["mixed_precision", "fp16", "bf16", "zero_optimization", "gradient_accumulation_steps", "compile"],
        "the built-in trainer has no such key; a script of yours decides for itself",
    ),
    (&["ssh_key", "key_file", "private_key", "identity", "key"], "it is `identity_file` of a host"),
    (
        &["password", "passphrase", "ssh_password"],
        "no password is kept: `ssh-copy-id` puts a key there, and `identity_file` names it, or an agent has it",
    ),
    (&["username", "login", "ssh_user"], "it is `user` of a host"),
    (&["hostname", "ip", "host_name", "ip_address"], "it is `address` of a host"),
    (&["ssh_port"], "it is `port` of a host"),
    (&["jump_host", "bastion", "proxyjump", "gateway"], "it is `proxy_jump` of a host"),
    (&["slots", "max_slots"], "it is `nproc` of a host"),
    (
        &["iface", "nic", "network_interface", "nccl_socket_ifname", "gloo_socket_ifname"],
        "it is `interface` of a host",
    ),
];
