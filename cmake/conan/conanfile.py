# SPDX-License-Identifier: MIT
# Conan 2's recipe, of the sources around it:   conan create cmake/conan -s compiler.cppstd=20
#
# Eigen is Conan Center's, or with -o "mhla/*:system_eigen=True" the system's own, for which nothing is
# downloaded. The package is what cmake --install makes, with the library's own CMake files: find_package(mhla)
# finds those through Conan's toolchain, mhla::kernels and the functions for CUDA with them.
import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load, rmdir


class Mhla(ConanFile):
    name = "mhla"
    description = "Token-level Multi-Head Linear Attention, forward and backward, over Eigen tensors"
    license = "MIT"
    topics = ("attention", "linear-attention", "eigen", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"system_eigen": [True, False]}
    default_options = {"system_eigen": False}

    def _project(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        header = load(self, os.path.join(self._project(), "include", "mhla", "version.hpp"))
        self.version = ".".join(re.findall(r"#define MHLA_VERSION_[A-Z]+ (\d+)", header))

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*"):
            copy(self, pattern, src=self._project(), dst=self.export_sources_folder, excludes="cmake/conan/*")

    def layout(self):
        cmake_layout(self)

    def requirements(self):
        if not self.options.system_eigen:
            self.requires("eigen/[>=3.4.0 <6]", transitive_headers=True)

    def validate(self):
        check_min_cppstd(self, 20)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for part in ("TESTS", "EXAMPLES", "BENCH"):
            toolchain.cache_variables[f"MHLA_BUILD_{part}"] = False
        toolchain.generate()
        CMakeDeps(self).generate()

    def package(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.install()
        rmdir(self, os.path.join(self.package_folder, "share", "pkgconfig"))  # Conan writes its own
        copy(self, "LICENSE", src=self.source_folder, dst=os.path.join(self.package_folder, "licenses"))

    def package_id(self):
        self.info.clear()

    def package_info(self):
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        self.cpp_info.builddirs = [os.path.join("share", "cmake", "mhla")]
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.set_property("pkg_config_name", "mhla")
