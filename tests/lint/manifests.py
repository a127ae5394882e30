#!/usr/bin/env python3
"""Refuses Kubernetes objects that a platform team would: tests/lint/manifests.py [--node] [--apart] [--egress] < rendered.yaml

Each container has an image by tag (not latest) or digest, requests of CPU and memory, limits of memory and of
GPUs where it is to have some, runs as somebody else than root with a root that it cannot write, and gets no privilege. No CPU limit is asked
for: a rank that is throttled holds up all others. With --node, pods may share the network and the InfiniBand
devices of their node, and lock memory; then their namespace says that it lets them. With --apart no worker is where the
coordinator is, or another worker. With --egress pods call names (DNS), each other, and what a label of a namespace or a range of
addresses names, at ports that are said, and nothing else.

Objects have the labels that Kubernetes recommends; what a cluster refuses to change, selectors and templates of claims,
has those that it had, app.kubernetes.io/name and none.

Secrets are for the pod's group at most, and a worker that joins with a token sees its own alone. Workers say where their jobs may read and write, which is below a volume. What a pod says twice agrees: its worker's devices are the GPUs that it gets, the worker ends before the
cluster ends it, /dev/shm fits into the memory, arguments name variables, ports, services and volumes that are there. Selectors choose something;
each pod has a NetworkPolicy, workers that a drain evicts a budget. Roles may read nodes and nothing else. GPU pods go where GPUs are.
"""

import ipaddress
import re
import sys

import yaml

IMAGE = re.compile(r"[^@]+(@sha256:[0-9a-f]{64}|:(?!latest$)[A-Za-z0-9_][A-Za-z0-9_.-]*)")
SUFFIXES = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
CONTROLLERS = ("StatefulSet", "DaemonSet", "Deployment")
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
LABELS = "app.kubernetes.io/"
# Of all objects, and of those that belong to one program.
COMMON = {"instance", "managed-by", "part-of", "version"}
OWN = {"component", "name"}
# The cluster gives it to pods of a StatefulSet.
POD_NAME = "statefulset.kubernetes.io/pod-name"
OF_PROGRAMS = (*CONTROLLERS, "Service", "NetworkPolicy", "PodDisruptionBudget", "ServiceMonitor", "PodMonitor")


def bytes_of(text):
    return int(text[:-2]) * SUFFIXES[text[-2:]]


def flag_of(container, name):
    return next((one.split("=", 1)[1] for one in container.get("args", []) if one.startswith(name + "=")), None)


def shares_store(container):
    """Of the coordinator: with others, on etcd."""
    return (flag_of(container, "--store") or "").startswith("etcd://")


def wrong_with_probes(container):
    ports = {one.get("name"): one["containerPort"] for one in container.get("ports", [])}
    for probe in PROBES:
        asks = container.get(probe, {}).get("httpGet")
        if probe not in container:
            yield f"it has no {probe}"
        # A file that is there says nothing about a daemon that hangs, and Kubernetes' gRPC probe knows no TLS.
        if asks is None:
            yield f"{probe} does not ask by HTTP"
            continue
        for flag in ("--http", "--metrics"):
            address, port = flag_of(container, flag), ports.get(asks.get("port"))
            if address and address.rsplit(":", 1)[1] != str(port):
                yield f"{probe} asks port {port}, and {flag} is {address}"
        if asks.get("scheme") != "HTTPS":
            yield f"{probe} does not speak TLS"
        # One of several coordinators stands by for as long as another one leads: no rollout may wait for it to be ready.
        ready = "/readyz?standby=ready" if shares_store(container) else "/readyz"
        if probe == "readinessProbe" and asks.get("path") != ready:
            yield f"{probe} does not ask {ready}"
        if probe != "readinessProbe" and asks.get("path") != "/livez":
            yield f"{probe} asks for more than whether it lives"


def wrong_with_sharing(items):
    """Of coordinators that share a store: each is told of by an address of its own, and a drain takes one."""
    services = {one["metadata"]["name"]: one["spec"]["selector"] for one in items if one["kind"] == "Service"}
    for one in (one for one in items if one["kind"] == "StatefulSet" and one["metadata"]["name"] == "phalanx-coordinator"):
        where, replicas = "StatefulSet phalanx-coordinator", one["spec"]["replicas"]
        container = one["spec"]["template"]["spec"]["containers"][0]
        if not shares_store(container):
            if replicas != 1:
                yield where, f"{replicas} coordinators, and a store of which one process has the journal"
            continue
        if not all(flag_of(container, flag) for flag in ("--etcd-ca", "--etcd-certificate", "--etcd-key")):
            yield where, "etcd is called without certificates"
        if replicas < 2:
            yield where, "nobody stands by"
        if flag_of(container, "--advertise") != "$(POD_NAME):" + flag_of(container, "--listen").rsplit(":", 1)[1]:
            yield where, "--advertise is not the pod's own address"
        names = [f"phalanx-coordinator-{number}" for number in range(replicas)]
        for name in names:
            if services.get(name, {}).get(POD_NAME) != name:
                yield where, f"no service {name} of that pod alone"
        for worker in (each for each in items if each["metadata"]["name"] == "phalanx-worker" and each["kind"] in CONTROLLERS):
            called = flag_of(worker["spec"]["template"]["spec"]["containers"][0], "--coordinator").split(",")
            if [address.partition(":")[0] for address in called] != names:
                yield f"{worker['kind']} phalanx-worker", f"--coordinator={','.join(called)} is not all of {names}"
        labels = one["spec"]["template"]["metadata"]["labels"]
        if not any(each["spec"].get("maxUnavailable") == 1 and each["spec"]["selector"]["matchLabels"].items() <= labels.items()
                   for each in items if each["kind"] == "PodDisruptionBudget"):
            yield where, "no PodDisruptionBudget of one: a drain evicts all coordinators at once"
        if not any(each.get("topologyKey") == "kubernetes.io/hostname" and each["labelSelector"]["matchLabels"].items() <= labels.items()
                   for each in one["spec"]["template"]["spec"].get("topologySpreadConstraints", [])):
            yield where, "nothing keeps its pods on different nodes"


def wrong_with_listening(container):
    """Of the coordinator: the port that callers are sent to."""
    ports = {one.get("name"): one["containerPort"] for one in container.get("ports", [])}
    address = flag_of(container, "--listen")
    if address and address.rsplit(":", 1)[1] != str(ports.get("grpc")):
        yield f"--listen={address}, and the port grpc is {ports.get('grpc')}"


def wrong_with_variables(container):
    """The cluster leaves $(NAME) as it is where there is no such variable."""
    known = {one["name"] for one in container.get("env", [])}
    texts = container.get("args", []) + [mount.get("subPathExpr", "") for mount in container.get("volumeMounts", [])]
    for name in sorted({name for text in texts for name in re.findall(r"\$\((\w+)\)", text)} - known):
        yield f"$({name}) is no variable of its own"


def wrong_with_volumes(pod, container, claims):
    mounts = {one["mountPath"]: one["name"] for one in container.get("volumeMounts", [])}
    memory = {one["name"] for one in pod.get("volumes", []) if one.get("emptyDir", {}).get("medium") == "Memory"}
    if container["name"] == "worker" and mounts.get("/dev/shm") not in memory:
        yield "/dev/shm is the container runtime's, of 64 MiB"
    store = flag_of(container, "--store")
    if store and not shares_store(container) and not any(store.startswith(path + "/") and name in claims for path, name in mounts.items()):
        yield f"--store={store} goes with the pod"


def wrong_with_place(pod, container):
    """Of one that gets GPUs."""
    if "nvidia.com/gpu" not in container.get("resources", {}).get("limits", {}):
        return
    terms = (pod.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
             .get("nodeSelectorTerms", [{}]))
    if not all(any(one["key"] == "nvidia.com/gpu.present" and one.get("values") == ["true"] for one in term.get("matchExpressions", []))
               for term in terms):
        yield "no affinity keeps it to nodes with GPUs"
    if not any(one.get("key") == "nvidia.com/gpu" and one.get("effect") in (None, "NoSchedule") for one in pod.get("tolerations", [])):
        yield "it does not tolerate the taint of nodes with GPUs"


def wrong_with_node_access(pod, container):
    """Of a worker in its node's network."""
    folders = {one["name"]: one["hostPath"]["path"] for one in pod.get("volumes", []) if "hostPath" in one}
    mounted = {one["mountPath"] for one in container["volumeMounts"] if folders.get(one["name"]) == one["mountPath"]}
    if mounted != {"/dev/infiniband"}:
        yield "without the InfiniBand devices of its node"
    if not pod.get("hostNetwork") or pod.get("dnsPolicy") != "ClusterFirstWithHostNet":
        yield "not in its node's network, or without the cluster's names there"
    if container["securityContext"]["capabilities"].get("add") != ["IPC_LOCK"]:
        yield "it may not lock memory"


def wrong_with_folders(container):
    """Of a worker: jobs that are not held to volumes could read its certificates and tokens."""
    folders = [one.split("=", 1)[1] for one in container.get("args", []) if one.startswith(("--read-folder=", "--write-folder="))]
    if container["name"] == "worker" and flag_of(container, "--write-folder") is None:
        yield "no --write-folder: jobs may read and write wherever the daemon may"
    data = [mount["mountPath"] for mount in container.get("volumeMounts", []) if mount["name"] == "data"]
    for folder in folders:
        if not any(folder == one or folder.startswith(one + "/") for one in data):
            yield f"jobs may use {folder}, which is not on the volume data"


def wrong_with_secrets(pod, container):
    """Who reads keys and tokens, and whose they are."""
    secrets = {one["name"]: one.get("secret") or one["projected"] for one in pod.get("volumes", []) if "secret" in one or "projected" in one}
    for mount in container.get("volumeMounts", []):
        if mount["name"] in secrets and (secrets[mount["name"]].get("defaultMode", 0o644) & 0o137 or pod["securityContext"].get("fsGroup") is None):
            yield f"volume {mount['name']}: a secret that others than the pod's group may read, or it may not"
    mounted = [mount["mountPath"] for mount in container.get("volumeMounts", []) if mount["name"] in secrets]
    for flag in ("--tls-ca", "--tls-certificate", "--tls-key", "--metrics-certificate", "--metrics-key", "--etcd-ca", "--etcd-certificate", "--etcd-key", "--tls-revoked", "--join-ca-certificate", "--join-ca-key", "--join-token-file"):
        file = flag_of(container, flag)
        if file and not any(file == one or file.startswith(one + "/") for one in mounted):
            yield f"{flag}={file} is in no secret"
    if flag_of(container, "--tls-ca") and flag_of(container, "--tls-revoked") is None:
        yield "--tls-ca without --tls-revoked: nobody's certificate can be taken back"
    if (flag_of(container, "--join-ca-certificate") is None) != (flag_of(container, "--join-ca-key") is None):
        yield "--join-ca-certificate and --join-ca-key: one without the other"


def wrong_with_identity(container):
    """Of a worker: certificate and key of its own, or a token of its own and nothing else."""
    token, own = flag_of(container, "--join-token-file"), [flag_of(container, one) for one in ("--tls-certificate", "--tls-key")]
    if container["name"] != "worker" or flag_of(container, "--tls-ca") is None:
        return
    if any(own) if token else not all(own):
        yield "neither a certificate with its key nor a token alone"
    name = f"token-{flag_of(container, '--node')}"
    if token and not any(mount["mountPath"] == token and mount.get("subPathExpr") == name for mount in container["volumeMounts"]):
        yield f"--join-token-file={token} is not {name}: other workers' tokens would be there, too"


def wrong_with_metrics(container):
    """Of a worker's port for metrics."""
    address = flag_of(container, "--metrics")
    if address is None:
        # Such a worker would be ended again and again, and its ranks with it.
        if container["name"] == "worker" and any("httpGet" in container.get(probe, {}) for probe in PROBES):
            yield "it is probed at a port that no --metrics opens"
        return
    ports = {one["name"]: one["containerPort"] for one in container.get("ports", [])}
    if str(ports.get("metrics")) != address.rsplit(":", 1)[1]:
        yield f"--metrics={address}, and the port metrics is {ports.get('metrics')}"
    if flag_of(container, "--metrics-certificate") is None or flag_of(container, "--metrics-key") is None:
        yield "--metrics without a certificate or its key"


def wrong_with_container(pod, container, node):
    resources = container.get("resources", {})
    own = container.get("securityContext", {})
    shared = pod.get("securityContext", {})
    if not IMAGE.fullmatch(container.get("image", "")):
        yield f"image {container.get('image')!r} has neither tag nor digest"
    for kind, what in (("requests", "cpu"), ("requests", "memory"), ("limits", "memory")):
        if what not in resources.get(kind, {}):
            yield f"resources.{kind}.{what} is missing"
    if not own.get("runAsNonRoot", shared.get("runAsNonRoot", False)):
        yield "runAsNonRoot is not true"
    if own.get("runAsUser", shared.get("runAsUser", 0)) == 0:
        yield "runAsUser is 0, or left to the image"
    if own.get("allowPrivilegeEscalation", True) or own.get("privileged", False):
        yield "it may gain privileges"
    if not own.get("readOnlyRootFilesystem", False):
        yield "its root can be written"
    capabilities = own.get("capabilities", {})
    if capabilities.get("drop") != ["ALL"] or capabilities.get("add", []) not in ([], ["IPC_LOCK"] if node else []):
        yield "it keeps capabilities"


def wrong_with_program(pod, container, claims, node):
    """What of the flags of ours does not fit the pod."""
    yield from wrong_with_variables(container)
    yield from wrong_with_volumes(pod, container, claims)
    yield from wrong_with_place(pod, container)
    if node and container["name"] == "worker":
        yield from wrong_with_node_access(pod, container)
    limits = container.get("resources", {}).get("limits", {})
    gpus = limits.get("nvidia.com/gpu")
    if flag_of(container, "--device") == "gpu" and flag_of(container, "--devices") != str(gpus):
        yield f"--devices={flag_of(container, '--devices')}, and limits.nvidia.com/gpu is {gpus}"
    grace = flag_of(container, "--grace")
    if grace is not None and int(grace) + 10 > pod.get("terminationGracePeriodSeconds", 30):
        yield f"--grace={grace} is not 10 s less than terminationGracePeriodSeconds"
    # Of a worker certificate and key may be replaced by a token.
    certified = ("--tls-ca",) if container["name"] == "worker" else ("--tls-ca", "--tls-certificate", "--tls-key")
    if not all(flag_of(container, flag) for flag in certified):
        yield "no certificates: what travels between pods would be in plaintext"
    names = {volume["name"]: volume for volume in pod.get("volumes", [])}
    for mount in container.get("volumeMounts", []):
        size = names.get(mount["name"], {}).get("emptyDir", {}).get("sizeLimit")
        if mount["mountPath"] == "/dev/shm" and size and bytes_of(size) > bytes_of(limits.get("memory", "0Mi")):
            yield f"/dev/shm of {size} is more than its limit of memory"
    yield from wrong_with_probes(container)
    yield from wrong_with_listening(container)
    yield from wrong_with_metrics(container)
    yield from wrong_with_folders(container)
    yield from wrong_with_secrets(pod, container)
    yield from wrong_with_identity(container)


def wrong_with_pod(pod, node):
    if pod.get("hostPID") or pod.get("hostIPC") or (pod.get("hostNetwork") and not node):
        yield "shares a name space of its node"
    for volume in pod.get("volumes", []):
        if "hostPath" in volume and not (node and volume["hostPath"]["path"] == "/dev/infiniband"):
            yield f"volume {volume['name']} is a folder of its node"
    if pod.get("automountServiceAccountToken", True):
        yield "every container has a token of the cluster's API"


def asks_with_certificate(endpoint):
    """Of a monitor: /metrics answers nobody else."""
    return endpoint.get("scheme") == "https" and {"serverName", "ca", "cert", "keySecret"} <= endpoint.get("tlsConfig", {}).keys()


def wrong_with_selectors(items):
    """What a selector of an object is to choose, and does not."""
    pods = [(one["kind"], one["spec"]["template"]["metadata"]["labels"]) for one in items if one["kind"] in CONTROLLERS]

    def chosen(labels, kinds=CONTROLLERS):
        wanted = {key: value for key, value in labels.items() if key != POD_NAME}
        return any(kind in kinds and wanted.items() <= of.items() for kind, of in pods)

    services = [one["metadata"]["labels"] for one in items if one["kind"] == "Service"]
    for one in items:
        where, spec = f"{one['kind']} {one['metadata']['name']}", one.get("spec", {})
        if one["kind"] == "Service" and not chosen(spec["selector"]):
            yield where, "chooses no pod"
        if one["kind"] == "NetworkPolicy" and not chosen(spec["podSelector"].get("matchLabels", {})):
            yield where, "chooses no pod"
        # The cluster counts pods of a DaemonSet among those of no budget.
        if one["kind"] == "PodDisruptionBudget" and not chosen(spec["selector"]["matchLabels"], ("StatefulSet",)):
            yield where, "chooses no pod that a drain evicts"
        if one["kind"] == "ServiceMonitor":
            if not all(map(asks_with_certificate, spec["endpoints"])):
                yield where, "does not ask over TLS with a certificate"
            if not any(spec["selector"]["matchLabels"].items() <= labels.items() for labels in services):
                yield where, "chooses no service"
        if one["kind"] == "PodMonitor":
            containers = [each for of in items if of["kind"] in CONTROLLERS
                          and spec["selector"]["matchLabels"].items() <= of["spec"]["template"]["metadata"]["labels"].items()
                          for each in of["spec"]["template"]["spec"]["containers"]]
            ports = {port["name"] for each in containers for port in each.get("ports", [])}
            if not all(map(asks_with_certificate, spec["podMetricsEndpoints"])):
                yield where, "does not ask over TLS with a certificate"
            if not {endpoint["port"] for endpoint in spec["podMetricsEndpoints"]} <= ports:
                yield where, "asks for a port that no pod has"


def wrong_with_plaintext(items):
    """Pods have addresses of their own, which others reach: plaintext is for loopback alone."""
    for one in (one for one in items if one["kind"] in CONTROLLERS):
        where, pod = f"{one['kind']} {one['metadata']['name']}", one["spec"]["template"]
        for each in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]:
            for flag in each.get("args", []):
                if flag.split("=", 1)[0].endswith("-plaintext"):
                    yield f"{where}, container {each['name']}", f"{flag}: beyond loopback"
            if any(variable["name"] == "PHALANX_PLAINTEXT" for variable in each.get("env", [])):
                yield f"{where}, container {each['name']}", "PHALANX_PLAINTEXT: beyond loopback"
        if pod["metadata"].get("annotations", {}).get("prometheus.io/scheme") != "https":
            yield where, "its annotations do not ask for its figures over TLS"
    for one in (one for one in items if one["kind"] == "Service"):
        if any(port.get("appProtocol") == "kubernetes.io/h2c" for port in one["spec"].get("ports", [])):
            yield f"Service {one['metadata']['name']}", "a port that is said to be in plaintext (h2c)"


def wrong_with_protection(items):
    """Pods that anybody reaches, and workers that a drain takes all at once."""
    def chosen(kind, labels):
        selectors = [one["spec"]["podSelector" if kind == "NetworkPolicy" else "selector"].get("matchLabels", {}) for one in items if one["kind"] == kind]
        return any(selector.items() <= labels.items() for selector in selectors)

    for one in items:
        if one["kind"] not in CONTROLLERS:
            continue
        where, labels = f"{one['kind']} {one['metadata']['name']}", one["spec"]["template"]["metadata"]["labels"]
        if not chosen("NetworkPolicy", labels):
            yield where, "no NetworkPolicy chooses its pods"
        if one["kind"] == "StatefulSet" and one["metadata"]["name"] == "phalanx-worker" and not chosen("PodDisruptionBudget", labels):
            yield where, "no PodDisruptionBudget: a drain evicts workers all at once"


def goes_to(rule):
    """What a rule of egress lets pods call, in words of ours; None: more than somebody has named."""
    ports = {(str(port.get("port")), port.get("protocol", "TCP")) for port in rule.get("ports") or []}
    found = set()
    for peer in rule.get("to") or []:
        spaces, pods = (peer.get(one, {}).get("matchLabels", {}) for one in ("namespaceSelector", "podSelector"))
        if peer.keys() == {"ipBlock"} and ipaddress.ip_network(peer["ipBlock"]["cidr"]).prefixlen >= 8 and ports:
            found.add("addresses")
        elif peer.keys() == {"podSelector"} and pods.get(LABELS + "name"):
            found.add(pods[LABELS + "name"])
        elif spaces and pods.get("k8s-app") == "kube-dns" and ports == {("53", "UDP"), ("53", "TCP")}:
            found.add("names")
        elif peer.keys() == {"namespaceSelector"} and spaces and ports and all(key.startswith("phalanx/") for key in spaces):
            found.add(next(iter(spaces)))
        else:
            return None
    return found or None


def wrong_with_egress(items):
    """What pods call, where that is held to what somebody has named."""
    needed = {"phalanx-coordinator": {"names", "phalanx/etcd"}, "phalanx-worker": {"names", "phalanx-coordinator", "phalanx-worker", "addresses"}}
    for one in (one for one in items if one["kind"] == "NetworkPolicy"):
        where, spec = f"NetworkPolicy {one['metadata']['name']}", one["spec"]
        if set(spec["policyTypes"]) != {"Ingress", "Egress"}:
            yield where, "leaves open what its pods call"
        called = [goes_to(rule) for rule in spec.get("egress", [])]
        if None in called:
            yield where, "a rule of egress that names nobody, or all"
        if set().union(*filter(None, called)) != needed.get(one["metadata"]["name"]):
            yield where, "its pods may call others than those that they have to"


def wrong_with_services(items):
    services = {one["metadata"]["name"]: one["spec"] for one in items if one["kind"] == "Service"}
    workloads = [one for one in items if one["kind"] in CONTROLLERS]
    for one in workloads:
        where = f"{one['kind']} {one['metadata']['name']}"
        if one["kind"] == "StatefulSet" and one["spec"]["serviceName"] not in services:
            yield where, f"no service {one['spec']['serviceName']}"
        for container in one["spec"]["template"]["spec"]["containers"]:
            for address in (flag_of(container, "--coordinator") or "").split(","):
                name, _, port = address.partition(":")
                if name and port not in {str(each["port"]) for each in services.get(name, {}).get("ports", [])}:
                    yield where, f"--coordinator={name}:{port} is no service"
    for name, spec in services.items():
        chosen = {key: value for key, value in spec["selector"].items() if key != POD_NAME}
        ports = {port["name"] for one in workloads if chosen.items() <= one["spec"]["template"]["metadata"]["labels"].items()
                 for container in one["spec"]["template"]["spec"]["containers"] for port in container.get("ports", [])}
        for port in spec.get("ports", []):
            if port["targetPort"] not in ports:
                yield f"Service {name}", f"port {port['targetPort']} is of no pod"


def wrong_with_labels(items):
    for one in items:
        where = f"{one['kind']} {one['metadata']['name']}"
        # One that is generated is named by what is in it, and only pods that come with it mount it.
        wanted = set() if one["kind"] == "ConfigMap" else COMMON | OWN if one["kind"] in OF_PROGRAMS else COMMON
        pods = [one["spec"]["template"]] if one["kind"] in CONTROLLERS else []
        for labels in (each["metadata"].get("labels", {}) for each in [one, *pods]):
            missing = wanted - {key.removeprefix(LABELS) for key, value in labels.items() if value}
            if missing:
                yield where, f"no label {LABELS}{sorted(missing)[0]}"
            if labels.get(LABELS + "name", "") != "phalanx-" + labels.get(LABELS + "component", "") and wanted > COMMON:
                yield where, f"{LABELS}name and {LABELS}component are not of one program"
        for pod in pods:
            if one["spec"]["selector"] != {"matchLabels": {LABELS + "name": one["metadata"]["name"]}}:
                yield where, "another selector than before, which a cluster refuses to change"
            version = pod["metadata"]["labels"].get(LABELS + "version", "")
            for tag in (each["image"].rpartition(":")[2] for each in pod["spec"]["containers"] if "@" not in each["image"]):
                if re.sub(r"-.*", "", tag) != version:
                    yield where, f"{LABELS}version is {version}, and the image has the tag {tag}"
        if any("labels" in claim["metadata"] for claim in one.get("spec", {}).get("volumeClaimTemplates", [])):
            yield where, "labels of volumeClaimTemplates, which a cluster refuses to change"


def wrong_with_distance(items):
    """Where workers may be beside the coordinator, or each other."""
    pods = {one["metadata"]["name"]: (one["kind"], one["spec"]["template"]["spec"].get("affinity", {})) for one in items if one["kind"] in CONTROLLERS}
    kind, own = pods["phalanx-worker"]
    if kind == "DaemonSet":
        terms = pods["phalanx-coordinator"][1].get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [{}])
        if not all({"key": "nvidia.com/gpu.present", "operator": "NotIn", "values": ["true"]} in term.get("matchExpressions", []) for term in terms):
            yield "StatefulSet phalanx-coordinator", "it may be on a node with GPUs, beside a worker"
        return
    kept = {value for term in own.get("podAntiAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", [])
            if term["topologyKey"] == "kubernetes.io/hostname"
            for each in term["labelSelector"]["matchExpressions"] if each["key"] == LABELS + "name" and each["operator"] == "In" for value in each["values"]}
    if not kept >= set(pods):
        yield "StatefulSet phalanx-worker", "its pods may be beside the coordinator, or each other"


def wrong_with_roles(items):
    """Who may ask the cluster's API, and what."""
    accounts = {one["metadata"]["name"] for one in items if one["kind"] == "ServiceAccount"}
    roles = {one["metadata"]["name"] for one in items if one["kind"] == "ClusterRole"}
    for one in items:
        where = f"{one['kind']} {one['metadata']['name']}"
        if one["kind"] == "Role" or (one["kind"] == "ClusterRole" and one["rules"] != [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]):
            yield where, "grants something else than to read nodes"
        if one["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            if one["roleRef"]["name"] not in roles or any(subject["kind"] != "ServiceAccount" or subject["name"] not in accounts or
                                                          subject["namespace"] != "phalanx" for subject in one["subjects"]):
                yield where, "binds what is not there"
        if one["kind"] in CONTROLLERS:
            pod = one["spec"]["template"]["spec"]
            if pod["serviceAccountName"] not in accounts:
                yield where, f"no service account {pod['serviceAccountName']}"
            if any("serviceAccountToken" in source for volume in pod["volumes"] for source in volume.get("projected", {}).get("sources", [])):
                asks = pod["serviceAccountName"]
                if not any(asks in {subject["name"] for subject in each["subjects"]} for each in items if each["kind"] == "ClusterRoleBinding"):
                    yield where, f"{asks} may not read its node"


def wrong_with(items, node):
    privileged = {one["metadata"]["labels"].get("pod-security.kubernetes.io/enforce") for one in items
                  if one["kind"] == "Namespace"} - {"restricted"}
    if bool(privileged) != node:
        yield "Namespace", "does not enforce what its pods keep to"
    containers = 0
    for item in items:
        if item["kind"] not in CONTROLLERS:
            continue
        pod, where = item["spec"]["template"]["spec"], f"{item['kind']} {item['metadata']['name']}"
        for rule in wrong_with_pod(pod, node):
            yield where, rule
        for container in pod.get("initContainers", []) + pod["containers"]:
            containers += 1
            for rule in wrong_with_container(pod, container, node):
                yield f"{where}, container {container['name']}", rule
        for container in pod["containers"]:
            claims = {one["metadata"]["name"] for one in item["spec"].get("volumeClaimTemplates", [])}
            for rule in wrong_with_program(pod, container, claims, node):
                yield f"{where}, container {container['name']}", rule
    if containers == 0:
        yield "nothing", "no container"
    yield from wrong_with_selectors(items)
    yield from wrong_with_plaintext(items)
    yield from wrong_with_protection(items)
    yield from wrong_with_services(items)
    yield from wrong_with_sharing(items)
    yield from wrong_with_roles(items)
    yield from wrong_with_labels(items)


def main():
    items = [one for one in yaml.load_all(sys.stdin, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if one]
    found = list(wrong_with(items, "--node" in sys.argv[1:]))
    if "--apart" in sys.argv[1:]:
        found += wrong_with_distance(items)
    if "--egress" in sys.argv[1:]:
        found += wrong_with_egress(items)
    for where, rule in found:
        print(f"{where}: {rule}")
    sys.exit(3 if found else 0)  # 1 is that of a program that broke


main()
