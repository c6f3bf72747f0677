/* Lets one system call fail, or a signal arrive at it, in a process that has this library preloaded.

   What is to happen stands in a page that the process shares with whoever forked it (struct plan). Calls that change
   something below a directory, or look whether they may, are counted; the one whose number is `at` meets the fault. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum when { BEFORE = 0, AFTER = 1, SHORT = 2 };

struct plan {
    atomic_int armed;
    atomic_int count;
    int at;
    int number;  /* an errno, or a signal with a minus before it */
    int when;
    atomic_int fired;
    char name[32];
    char scope[PATH_MAX];
    char log[8192][4];  /* the first letters of every call that was counted */
};

static struct plan *plan;

__attribute__((constructor)) static void map_plan(void)
{
    const char *path = getenv("UCP_FAULT_PLAN");
    if (path == NULL)
        return;
    int descriptor = open(path, O_RDWR | O_CLOEXEC);
    if (descriptor < 0)
        return;
    void *page = mmap(NULL, sizeof(struct plan), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (page != MAP_FAILED)
        plan = page;
    close(descriptor);
}

static int below(const char *path)
{
    size_t length = strlen(plan->scope);
    return length && strncmp(path, plan->scope, length) == 0;
}

static int descriptor_below(int descriptor, const char *rest)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    (void)rest;
    if (length < 0)
        return 0;
    path[length] = 0;
    return below(path);
}

static int path_below(int directory, const char *path)
{
    if (path == NULL || *path == '/' || directory == AT_FDCWD)
        return path != NULL && below(path);
    return descriptor_below(directory, path);
}

/* Whether this call meets the fault. */
static int meets(const char *name)
{
    int number = atomic_fetch_add(&plan->count, 1);
    if (number < 8192)
        memcpy(plan->log[number], name, 4);
    if (number + 1 != plan->at)
        return 0;
    strncpy(plan->name, name, sizeof plan->name - 1);
    atomic_store(&plan->fired, 1);
    return 1;
}

static int is_acting = 1;

/* Whether the calls of this process count; processes that it forks inherit that. */
void ucp_fault_act(int acts)
{
    is_acting = acts;
}

static int is_armed(void)
{
    return plan != NULL && is_acting && atomic_load(&plan->armed);
}

/* Nobody has a descriptor whose answer is lost: close what a call has opened. */
static void forget(const char *name, int result)
{
    if (strcmp(name, "open") == 0) {
        int (*call)(int) = (int (*)(int))dlsym(RTLD_NEXT, "close");
        call(result);
    }
}

/* Do `call`, with the fault before or after it. */
#define FAULTY(kind, name, is_below, call)                                                                            \
    do {                                                                                                              \
        if (!is_armed() || !(is_below) || !meets(name))                                                               \
            return call;                                                                                              \
        if (plan->when == BEFORE) {                                                                                   \
            if (plan->number > 0) {                                                                                   \
                errno = plan->number;                                                                                 \
                return -1;                                                                                            \
            }                                                                                                         \
            kill(getpid(), -plan->number);                                                                            \
            return call;                                                                                              \
        }                                                                                                             \
        kind result = call;                                                                                           \
        if (plan->number < 0)                                                                                         \
            kill(getpid(), -plan->number);                                                                            \
        else if (plan->when == AFTER && result >= 0) {                                                                \
            forget(name, (int)result);                                                                                \
            errno = plan->number;                                                                                     \
            return -1;                                                                                                \
        }                                                                                                             \
        return result;                                                                                                \
    } while (0)

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL)
        abort();
    return found;
}

#define OPEN_MODE                                                                                                     \
    mode_t mode = 0;                                                                                                  \
    if (flags & O_CREAT) {                                                                                            \
        va_list more;                                                                                                 \
        va_start(more, flags);                                                                                        \
        mode = va_arg(more, mode_t);                                                                                  \
        va_end(more);                                                                                                 \
    }

int open(const char *path, int flags, ...)
{
    OPEN_MODE
    FAULTY(int, "open", path_below(AT_FDCWD, path), REAL(open)(path, flags, mode));
}

int open64(const char *path, int flags, ...)
{
    OPEN_MODE
    FAULTY(int, "open", path_below(AT_FDCWD, path), REAL(open64)(path, flags, mode));
}

int openat(int directory, const char *path, int flags, ...)
{
    OPEN_MODE
    FAULTY(int, "open", path_below(directory, path), REAL(openat)(directory, path, flags, mode));
}

int openat64(int directory, const char *path, int flags, ...)
{
    OPEN_MODE
    FAULTY(int, "open", path_below(directory, path), REAL(openat64)(directory, path, flags, mode));
}

int close(int descriptor)
{
    FAULTY(int, "close", descriptor_below(descriptor, ""), REAL(close)(descriptor));
}

int fsync(int descriptor)
{
    FAULTY(int, "fsync", descriptor_below(descriptor, ""), REAL(fsync)(descriptor));
}

int flock(int descriptor, int operation)
{
    int (*call)(int, int) = (int (*)(int, int))real("flock");
    FAULTY(int, "flock", descriptor_below(descriptor, ""), call(descriptor, operation));
}

int ftruncate64(int descriptor, off64_t length)
{
    FAULTY(int, "ftruncate", descriptor_below(descriptor, ""), REAL(ftruncate64)(descriptor, length));
}

int fallocate64(int descriptor, int mode, off64_t offset, off64_t length)
{
    FAULTY(int, "fallocate", descriptor_below(descriptor, ""), REAL(fallocate64)(descriptor, mode, offset, length));
}

int mkdir(const char *path, mode_t mode)
{
    FAULTY(int, "mkdir", path_below(AT_FDCWD, path), REAL(mkdir)(path, mode));
}

int mkdirat(int directory, const char *path, mode_t mode)
{
    FAULTY(int, "mkdir", path_below(directory, path), REAL(mkdirat)(directory, path, mode));
}

int rmdir(const char *path)
{
    FAULTY(int, "rmdir", path_below(AT_FDCWD, path), REAL(rmdir)(path));
}

int unlink(const char *path)
{
    FAULTY(int, "unlink", path_below(AT_FDCWD, path), REAL(unlink)(path));
}

int unlinkat(int directory, const char *path, int flags)
{
    FAULTY(int, flags & AT_REMOVEDIR ? "rmdir" : "unlink", path_below(directory, path),
           REAL(unlinkat)(directory, path, flags));
}

int link(const char *source, const char *target)
{
    FAULTY(int, "link", path_below(AT_FDCWD, source), REAL(link)(source, target));
}

int linkat(int from, const char *source, int to, const char *target, int flags)
{
    FAULTY(int, "link", path_below(from, source), REAL(linkat)(from, source, to, target, flags));
}

int rename(const char *source, const char *target)
{
    FAULTY(int, "rename", path_below(AT_FDCWD, source), REAL(rename)(source, target));
}

int renameat(int from, const char *source, int to, const char *target)
{
    FAULTY(int, "rename", path_below(from, source), REAL(renameat)(from, source, to, target));
}

int renameat2(int from, const char *source, int to, const char *target, unsigned flags)
{
    FAULTY(int, "rename", path_below(from, source), REAL(renameat2)(from, source, to, target, flags));
}

/* Writes may also do less than they were asked to, which is no error. */
static int is_short(const char *name)
{
    (void)name;
    return plan != NULL && plan->when == SHORT;
}

ssize_t write(int descriptor, const void *data, size_t size)
{
    if (is_armed() && is_short("write") && size > 1 && descriptor_below(descriptor, ""))
        size = meets("write") ? size / 2 : size;
    else
        FAULTY(ssize_t, "write", descriptor_below(descriptor, ""), REAL(write)(descriptor, data, size));
    return REAL(write)(descriptor, data, size);
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t offset)
{
    if (is_armed() && is_short("write") && size > 1 && descriptor_below(descriptor, ""))
        size = meets("write") ? size / 2 : size;
    else
        FAULTY(ssize_t, "write", descriptor_below(descriptor, ""), REAL(pwrite64)(descriptor, data, size, offset));
    return REAL(pwrite64)(descriptor, data, size, offset);
}

static ssize_t vectored(int descriptor, const struct iovec *parts, int count, off64_t offset, int flags)
{
    if (!is_armed() || !descriptor_below(descriptor, "") || !meets("write") || count == 0)
        return REAL(pwritev64v2)(descriptor, parts, count, offset, flags);
    if (parts[0].iov_len > 1)
        return REAL(pwrite64)(descriptor, parts[0].iov_base, parts[0].iov_len / 2, offset);
    return REAL(pwritev64v2)(descriptor, parts, count > 1 ? count - 1 : 1, offset, flags);
}

ssize_t pwritev64v2(int descriptor, const struct iovec *parts, int count, off64_t offset, int flags)
{
    if (is_short("write"))
        return vectored(descriptor, parts, count, offset, flags);
    FAULTY(ssize_t, "write", descriptor_below(descriptor, ""),
           REAL(pwritev64v2)(descriptor, parts, count, offset, flags));
}

ssize_t pwritev64(int descriptor, const struct iovec *parts, int count, off64_t offset)
{
    if (is_short("write"))
        return vectored(descriptor, parts, count, offset, 0);
    FAULTY(ssize_t, "write", descriptor_below(descriptor, ""), REAL(pwritev64)(descriptor, parts, count, offset));
}
