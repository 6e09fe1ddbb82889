"""Run a Ray cluster on this machine, one raylet per node, until standard input ends.

Run as a script, by the Python whose environment its workers shall have; prints the address and the
processes of its raylets.
"""

import json
import os
import sys

QUICK = {  # to notice within seconds that a node is dead
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 3,
}


def main(nodes: int) -> None:
    # Do not kill workers because other processes use much memory.
    os.environ |= {"RAY_memory_monitor_refresh_ms": "0"}
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": QUICK}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    members = [cluster.head_node, *(cluster.add_node(num_cpus=1) for _ in range(nodes - 1))]
    pids = [member.all_processes["raylet"][0].process.pid for member in members]
    print(json.dumps({"address": cluster.address, "raylets": pids}), flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
