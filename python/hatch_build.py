"""Puts `ebb` and its library, which `cargo xtask dist` has built, into the wheel."""

import os

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Binaries(BuildHookInterface):
    def initialize(self, version, build_data):
        root = os.environ.get("EBB_DIST_ROOT")
        tag = os.environ.get("EBB_WHEEL_TAG")
        if not root or not tag:
            raise SystemExit("build the wheel with `cargo xtask dist wheel`, which builds ebb first")
        library = "lib/ebb/libebb_preload.so"
        build_data["pure_python"] = False
        build_data["tag"] = tag
        # Below the prefix: bin/ebb, and its library where it looks for it.
        build_data["shared_scripts"][os.path.join(root, "bin/ebb")] = "ebb"
        build_data["shared_data"][os.path.join(root, library)] = library
