"""Objects as kubectl writes and reads them, held to the published schemas: those that cluster.py serves."""

import datetime
import json
import threading
import uuid

APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
# Of each group's version: plural, kind, whether it is of a namespace.
RESOURCES = {
    "v1": (("namespaces", "Namespace", False), ("nodes", "Node", False), ("pods", "Pod", True), ("services", "Service", True),
           ("serviceaccounts", "ServiceAccount", True), ("secrets", "Secret", True), ("configmaps", "ConfigMap", True),
           ("persistentvolumeclaims", "PersistentVolumeClaim", True)),
    "apps/v1": (("statefulsets", "StatefulSet", True), ("daemonsets", "DaemonSet", True)),
    "networking.k8s.io/v1": (("networkpolicies", "NetworkPolicy", True),),
    "policy/v1": (("poddisruptionbudgets", "PodDisruptionBudget", True),),
    "rbac.authorization.k8s.io/v1": (("clusterroles", "ClusterRole", False), ("clusterrolebindings", "ClusterRoleBinding", False)),
    "cert-manager.io/v1": (("issuers", "Issuer", True), ("certificates", "Certificate", True)),
}
KINDS = {plural: (version, kind, of_namespace) for version, rows in RESOURCES.items() for plural, kind, of_namespace in rows}


class Refused(Exception):
    def __init__(self, code, reason, message):
        super().__init__(message)
        self.status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason,
                       "message": message}


def not_found(plural, name):
    return Refused(404, "NotFound", f'{plural} "{name}" not found')


def chosen_by(labels, selector):
    """Of `a=b,c=d`."""
    return all(labels.get(one.partition("=")[0]) == one.partition("=")[2].lstrip("=") for one in selector.split(",") if one)


def merged(old, patch):
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    new = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        new[key] = merged(new.get(key), value)
        if value is None:
            del new[key]
    return new


def hold_to_schema(item):
    if item["apiVersion"].startswith("cert-manager.io/"):
        return  # there are none of its kinds
    import kubernetes_validate  # of a folder that is on the path by now
    try:
        kubernetes_validate.validate(item, kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as wrong:
        raise Refused(400, "BadRequest", f"{wrong.message} at {'.'.join(map(str, wrong.path))}") from wrong


class Objects:
    """Thread-safe. Who looks at several as they are at one moment holds `changed`, which is notified of every change."""

    def __init__(self):
        self.changed = threading.Condition(threading.RLock())
        self.items, self.version = {}, 0  # by (plural, namespace, name)

    def find(self, plural, namespace, name):
        """It, or None."""
        with self.changed:
            return self.items.get((plural, namespace, name))

    def all(self, plural, namespace=None):
        """Those of the kind, of one namespace or of all."""
        with self.changed:
            return [one for (kind, of, _), one in self.items.items() if kind == plural and namespace in (None, of)]

    def put(self, plural, namespace, item):
        with self.changed:
            self.version += 1
            said = item["metadata"]
            said.setdefault("uid", str(uuid.uuid4()))
            said.setdefault("creationTimestamp", datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"))
            said["resourceVersion"] = str(self.version)
            if namespace:
                said["namespace"] = namespace
            if item["kind"] in ("StatefulSet", "DaemonSet"):
                item["spec"].setdefault("updateStrategy", {"type": "RollingUpdate"})
                said["generation"] = said.get("generation", 0) + 1
            self.items[plural, namespace, said["name"]] = item
            self.changed.notify_all()
        return item

    def create(self, plural, namespace, item):
        hold_to_schema(item)
        with self.changed:
            if namespace and ("namespaces", "", namespace) not in self.items:
                raise not_found("namespaces", namespace)
            if (plural, namespace, item["metadata"]["name"]) in self.items:
                raise Refused(409, "AlreadyExists", f'{plural} "{item["metadata"]["name"]}" already exists')
            return self.put(plural, namespace, item)

    def change(self, plural, namespace, name, patch):
        with self.changed:
            old = self.find(plural, namespace, name)
            if old is None:
                raise not_found(plural, name)
            applied = patch.get("metadata", {}).get("annotations", {}).get(APPLIED)
            new = json.loads(applied) if applied else merged(old, patch)
            if applied:
                # What the patch comes to: all lists that it would merge are in there.
                new["metadata"] = {**old["metadata"], **new["metadata"], "annotations": {APPLIED: applied}}
            hold_to_schema(new)
            if old["kind"] in ("StatefulSet", "DaemonSet") and old["spec"] != {"updateStrategy": old["spec"]["updateStrategy"], **new["spec"]}:
                raise Refused(422, "Invalid", f'{old["kind"]} "{name}" is invalid: spec: Forbidden: this cluster cannot change it')
            return self.put(plural, namespace, new)

    def delete_namespace(self, name):
        """With all that is in it."""
        with self.changed:
            self.items = {key: one for key, one in self.items.items() if name not in (key[1], key[2] if key[0] == "namespaces" else "")}
