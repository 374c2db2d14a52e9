/* SPDX-License-Identifier: Apache-2.0 */
/* Features: quick and thorough look agree where they can, masks mask, and nothing that was tried
 * stays. */
#include "test.h"

#include <fcntl.h>
#include <jansson.h>
#include <rollbox/rollbox.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "sys/features.h"

static struct features quick_with(const char *mask) {
    struct features features;

    setenv("ROLLBOX_KFEAT", mask, 1);
    features_quick(&features);
    return features;
}

TEST(facts_are_of_this_process) {
    struct features features = quick_with("");

    ASSERT_EQ(features.uid, geteuid());
    ASSERT_GE(features.cpus, 1);
    ASSERT_GT(features.memory_total_bytes, 0);
    ASSERT_GE(features.release_major, 5);
    ASSERT_STR_EQ(features.mask_problem, "");
}

TEST(every_feature_can_be_masked) {
    for (enum feature i = 0; i < FEATURE_COUNT; i++) {
        struct features features;
        char mask[64];

        snprintf(mask, sizeof(mask), "-%s", feature_name(i));
        features = quick_with(mask);
        ASSERT_STR_EQ(features.mask_problem, "");
        if (feature_get(&features, i))
            FAIL("%s is there although it is masked", feature_name(i));
        ASSERT_TRUE(feature_needed_for(i)[0] != '\0');
        ASSERT_TRUE(feature_hint(i)[0] != '\0');
    }
}

TEST(masks_are_a_list) {
    struct features features = quick_with("-landlock,-userns -cgroup,-timens,");

    ASSERT_STR_EQ(features.mask_problem, "");
    ASSERT_FALSE(features.landlock || features.userns || features.timens);
    ASSERT_FALSE(features.cgroup_v1 || features.cgroup_v2 || features.cgroup_memory);
    ASSERT_EQ(features.landlock_abi, 0);
    ASSERT_FALSE(features_namespace_ok(&features));
    ASSERT_FALSE(features_process_ok(&features));
}

TEST(masking_a_part_of_landlock_lowers_its_abi) {
    int abi = quick_with("").landlock_abi;
    struct features features = quick_with("-landlock_net");

    ASSERT_EQ(features.landlock_abi, MIN(abi, 3));
    ASSERT_FALSE(features.landlock_scope);
    ASSERT_EQ(features.landlock, abi >= 1);
    features = quick_with("-landlock_scope");
    ASSERT_EQ(features.landlock_abi, MIN(abi, 5));
}

TEST(unknown_masks_are_reported) {
    ASSERT_STR_EQ(quick_with("-landlock,-warp,-time").mask_problem, "-warp");
    ASSERT_STR_EQ(quick_with("landlock").mask_problem, "landlock");
    ASSERT_STR_EQ(quick_with("-").mask_problem, "-");
    ASSERT_STR_EQ(quick_with("-userns2").mask_problem, "-userns2");
    ASSERT_EQ(strlen(quick_with("-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                                "aaaaaaaaaaaaaaaaaaaaaaa")
                         .mask_problem),
        sizeof(((struct features *)NULL)->mask_problem) - 1);
}

/* Trying can only take away: what the kernel does not claim to have is not there. */
TEST(probe_finds_no_more_than_quick_does) {
    struct features quick = quick_with(""), probed;

    ASSERT_OK(features_probe(&probed));
    for (enum feature i = 0; i < FEATURE_COUNT; i++)
        if (feature_get(&probed, i) && !feature_get(&quick, i) && i != FEATURE_USERNS)
            FAIL("%s: probed, but not seen by features_quick", feature_name(i));
    ASSERT_EQ(probed.landlock_abi, quick.landlock_abi);
    ASSERT_FALSE(probed.cgroup_v1 && probed.cgroup_v2);
}

static char *own(const char *file) {
    struct buf text = BUF_INIT;

    ASSERT_OK(fd_read_file(file, 1 << 22, &text));
    return buf_take(&text);
}

TEST(probe_leaves_nothing) {
    auto_free char *mounts = own("/proc/self/mountinfo"), *cgroups = own("/proc/self/cgroup"),
                   *mounts_after = NULL, *cgroups_after = NULL;
    struct features features;
    int before = (int)ASSERT_CALL(dup(0)), after;
    mode_t mask = umask(022), mask_after;
    char host[65], host_after[65];

    close(before);
    ASSERT_CALL(gethostname(host, sizeof(host)));
    ASSERT_OK(features_probe(&features));
    mounts_after = own("/proc/self/mountinfo");
    cgroups_after = own("/proc/self/cgroup");
    ASSERT_STR_EQ(mounts_after, mounts);
    ASSERT_STR_EQ(cgroups_after, cgroups);
    ASSERT_CALL(gethostname(host_after, sizeof(host_after)));
    ASSERT_STR_EQ(host_after, host);
    after = (int)ASSERT_CALL(dup(0));
    ASSERT_EQ(after, before);
    mask_after = umask(mask);
    ASSERT_EQ(mask_after, 022);
    ASSERT_EQ(waitpid(-1, NULL, WNOHANG), -1); /* no child is left either */
    ASSERT_EQ(errno, ECHILD);
}

TEST(doctor_reports_every_feature_with_a_hint_where_one_is_needed) {
    struct rollbox_error error = { 0 };
    auto_free char *text = NULL;
    json_t *report, *feature;
    size_t i;

    setenv("ROLLBOX_KFEAT", "-landlock,-cgroup", 1);
    ASSERT_OK(rollbox_doctor(&text, &error));
    report = json_loads(text, 0, NULL);
    ASSERT_NOT_NULL(report);
    ASSERT_STR_EQ(json_string_value(json_object_get(report, "cgroup")), "none");
    ASSERT_TRUE(json_is_false(json_object_get(json_object_get(report, "isolation"), "process")));
    ASSERT_TRUE(json_is_boolean(json_object_get(report, "ok")));
    ASSERT_NOT_NULL(json_string_value(json_object_get(report, "kernel")));
    ASSERT_EQ(json_array_size(json_object_get(report, "features")), FEATURE_COUNT);
    json_array_foreach(json_object_get(report, "features"), i, feature) {
        const char *name = json_string_value(json_object_get(feature, "name")),
                   *hint = json_string_value(json_object_get(feature, "hint"));
        bool available = json_is_true(json_object_get(feature, "available"));

        ASSERT_STR_EQ(name, feature_name((enum feature)i));
        if (available ? hint[0] != '\0' : hint[0] == '\0' && strcmp(name, "idmapped_mounts") != 0)
            FAIL("%s: available %d, hint \"%s\"", name, available, hint);
    }
    json_decref(report);
}

TEST(doctor_refuses_an_unknown_mask) {
    struct rollbox_error error = { 0 };
    char *text = NULL;

    setenv("ROLLBOX_KFEAT", "-warp", 1);
    ASSERT_ERR(rollbox_doctor(&text, &error), -EINVAL);
    ASSERT_EQ(error.code, ROLLBOX_ERR_INVALID_ARGUMENT);
    ASSERT_STR_CONTAINS(error.message, "-warp");
    ASSERT_NULL(text);
}
