"""Rank tables of every format, written for these tests."""

from __future__ import annotations

import copy

import pytest


def version_1(servers=2, devices=4, version="1.0", pods=0):
    table = {
        "version": version,
        "status": "completed",
        "server_count": str(servers),
        "server_list": [
            {
                "server_id": f"node-{s}",
                "host_ip": f"10.1.0.{s + 1}",
                "device": [
                    {
                        "device_id": str(d),
                        "device_ip": f"192.168.{s}.{d + 1}",
                        "device_port": str(16000 + d),
                        "rank_id": str(s * devices + d),
                    }
                    for d in range(devices)
                ],
            }
            for s in range(servers)
        ],
    }
    if pods:
        for s, server in enumerate(table["server_list"]):
            for d, device in enumerate(server["device"]):
                device["super_device_id"] = str(s * devices + d)
        each = servers // pods
        table["super_pod_list"] = [
            {
                "super_pod_id": f"pod-{p}",
                "server_list": [{"server_id": f"node-{s}"} for s in range(p * each, (p + 1) * each)],
            }
            for p in range(pods)
        ]
    return table


def group_list(servers=2, devices=4):
    return {
        "status": "completed",
        "group_count": "1",
        "group_list": [
            {
                "group_name": "workers",
                "instance_count": str(servers),
                "device_count": str(servers * devices),
                "instance_list": [
                    {
                        "pod_name": f"worker-{s}",
                        "server_id": f"node-{s}",
                        "devices": [{"device_id": str(d), "device_ip": f"192.168.{s}.{d + 1}"} for d in range(devices)],
                    }
                    for s in range(servers)
                ],
            }
        ],
    }


def lab(servers=2, devices=2):
    ranks = [(s, d) for s in range(servers) for d in range(devices)]
    return {
        "board_id": "0x0020",
        "chip_info": "910",
        "deploy_mode": "lab",
        "group_count": "1",
        "group_list": [
            {
                "device_num": str(len(ranks)),
                "instance_count": str(len(ranks)),
                "group_name": "",
                "instance_list": [
                    {
                        "devices": [{"device_id": str(d), "device_ip": f"192.168.{s}.{d + 1}"}],
                        "rank_id": str(r),
                        "server_id": f"node-{s}",
                    }
                    for r, (s, d) in enumerate(ranks)
                ],
            }
        ],
        "para_plane_nic_location": "device",
        "status": "completed",
    }


def version_2(servers=2, devices=4, pods=0):
    return {
        "version": "2.0",
        "rank_count": servers * devices,
        "rank_list": [
            {
                "rank_id": s * devices + d,
                "local_id": d,
                "device_id": d,
                "device_port": 16666,
                "level_list": [
                    {
                        "net_layer": 0,
                        "net_instance_id": f"node-{s}",
                        "net_type": "TOPO_FILE_DESC",
                        "rank_addr_list": [],
                    },
                    *([{"net_layer": 1, "net_instance_id": f"pod-{s * pods // servers}"}] if pods else []),
                    {
                        "net_layer": 2 if pods else 1,
                        "net_instance_id": "cluster",
                        "net_type": "CLOS",
                        "rank_addr_list": [
                            {"addr_type": "IPV4", "addr": f"192.168.{s}.{d + 1}", "ports": ["0/1"], "plane_id": "0"}
                        ],
                    },
                ],
            }
            for s in range(servers)
            for d in range(devices)
        ],
    }


@pytest.fixture(scope="session")
def tables():
    """Builders of valid tables, by name."""
    return {
        "1.0": version_1,
        "1.2": lambda: version_1(4, 2, "1.2", pods=2),
        "1.2 plain": lambda: version_1(2, 4, "1.2"),
        "group_list": group_list,
        "lab": lab,
        "2.0": version_2,
        "2.0 pods": lambda: version_2(4, 2, pods=2),
    }


@pytest.fixture
def changed(tables):
    """A valid table with some values set: a path such as ("server_list", 0, "server_id") → a value; ... deletes."""

    def changed(name, changes):
        table = copy.deepcopy(tables[name]())
        for path, value in changes.items():
            inner = table
            for part in path[:-1]:
                inner = inner[part]
            if value is ...:
                del inner[path[-1]]
            else:
                inner[path[-1]] = value
        return table

    return changed
