"""The stages, most valuable first: (name, seconds, function). Each fills a dictionary as it goes."""

from correct import environment, equality, hang, load, nccl
from fast import all_reduce, pong, precision, profile, rates, small
from seen import nvml, screens, script

ORDER = [environment, load, nccl, equality, hang, pong, all_reduce, rates, small, precision, profile, nvml, script, screens]
STAGES = [(each.__name__, each.seconds, each) for each in ORDER]
