/* Writes down what a process changes below a directory: names, contents, and what it makes durable.

   UCP_TRACE names the file of records, UCP_TRACE_SCOPE the directory. Calls are done one after another, so that the
   records stand in the order in which the calls had their effect. Opening /.ucp-mark/TEXT writes TEXT down.
   A record is a struct record, two paths and data; recording.py reads it. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define MARK "/.ucp-mark/"

enum what { MARKED, CREATED, WRITTEN, CUT, SYNCED, MADE, REMOVED, UNLINKED, LINKED, RENAMED, ALLOCATED };

struct record {
    uint32_t what, source, target, size;
    uint64_t inode, start, length;
};

static pthread_mutex_t in_order = PTHREAD_MUTEX_INITIALIZER;
static const char *scope;
static FILE *records;

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL)
        abort();
    return found;
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("UCP_TRACE");
    scope = getenv("UCP_TRACE_SCOPE");
    if (path != NULL && scope != NULL)
        records = fopen(path, "abe");
}

static int is_below(const char *path)
{
    return records != NULL && strncmp(path, scope, strlen(scope)) == 0;
}

static int path_of(int descriptor, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return is_below(path);
}

/* The absolute path of a name, if it lies in the scope. */
static int resolved(int directory, const char *name, char *path)
{
    char below[PATH_MAX];
    if (records == NULL || name == NULL)
        return 0;
    if (*name == '/')
        snprintf(path, PATH_MAX, "%s", name);
    else if (directory == AT_FDCWD) {
        if (getcwd(below, sizeof below) == NULL)
            return 0;
        if (snprintf(path, PATH_MAX, "%s/%s", below, name) >= PATH_MAX)
            return 0;
    } else {
        if (!path_of(directory, below))
            return 0;
        if (snprintf(path, PATH_MAX, "%s/%s", below, name) >= PATH_MAX)
            return 0;
    }
    return is_below(path);
}

static void put(enum what what, uint64_t inode, const char *source, const char *target, uint64_t start,
                uint64_t length, const struct iovec *parts, int count, size_t size)
{
    struct record record = {what, strlen(source), strlen(target), size, inode, start, length};
    fwrite(&record, sizeof record, 1, records);
    fwrite(source, 1, record.source, records);
    fwrite(target, 1, record.target, records);
    for (int number = 0; number < count && size; number++) {
        size_t some = parts[number].iov_len < size ? parts[number].iov_len : size;
        fwrite(parts[number].iov_base, 1, some, records);
        size -= some;
    }
    fflush(records);
}

static uint64_t inode_of(int descriptor)
{
    struct stat status;
    return fstat(descriptor, &status) == 0 ? status.st_ino : 0;
}

static uint64_t inode_at(const char *path)
{
    struct stat status;
    return lstat(path, &status) == 0 ? status.st_ino : 0;
}

static int opened(int (*call)(int, const char *, int, ...), int directory, const char *name, int flags, mode_t mode)
{
    char path[PATH_MAX];
    if (records != NULL && strncmp(name, MARK, strlen(MARK)) == 0) {
        pthread_mutex_lock(&in_order);
        put(MARKED, 0, name + strlen(MARK), "", 0, 0, NULL, 0, 0);
        pthread_mutex_unlock(&in_order);
        errno = ENOENT;
        return -1;
    }
    if (!(flags & (O_CREAT | O_TRUNC)) || flags & O_DIRECTORY || !resolved(directory, name, path))
        return call(directory, name, flags, mode);
    pthread_mutex_lock(&in_order);
    uint64_t before = inode_at(path);
    int descriptor = call(directory, name, flags, mode);
    int error = errno;
    if (descriptor >= 0) {
        if (before == 0)
            put(CREATED, inode_of(descriptor), path, "", 0, 0, NULL, 0, 0);
        else if (flags & O_TRUNC)
            put(CUT, inode_of(descriptor), "", "", 0, 0, NULL, 0, 0);
    }
    pthread_mutex_unlock(&in_order);
    errno = error;
    return descriptor;
}

#define OPEN_MODE                                                                                                     \
    mode_t mode = 0;                                                                                                  \
    if (flags & (O_CREAT | O_TMPFILE)) {                                                                              \
        va_list more;                                                                                                 \
        va_start(more, flags);                                                                                        \
        mode = va_arg(more, mode_t);                                                                                  \
        va_end(more);                                                                                                 \
    }

int open(const char *path, int flags, ...)
{
    OPEN_MODE
    return opened(REAL(openat), AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    OPEN_MODE
    return opened(REAL(openat64), AT_FDCWD, path, flags, mode);
}

int openat(int directory, const char *path, int flags, ...)
{
    OPEN_MODE
    return opened(REAL(openat), directory, path, flags, mode);
}

int openat64(int directory, const char *path, int flags, ...)
{
    OPEN_MODE
    return opened(REAL(openat64), directory, path, flags, mode);
}

/* Do `call` in order, and write it down where it has succeeded. */
#define RECORDED(kind, is_wanted, call, how)                                                                          \
    do {                                                                                                              \
        if (records == NULL || !(is_wanted))                                                                          \
            return call;                                                                                              \
        pthread_mutex_lock(&in_order);                                                                                \
        kind result = call;                                                                                           \
        int error = errno;                                                                                            \
        if (result >= 0)                                                                                              \
            how;                                                                                                      \
        pthread_mutex_unlock(&in_order);                                                                              \
        errno = error;                                                                                                \
        return result;                                                                                                \
    } while (0)

#define OF_DESCRIPTOR                                                                                                 \
    char path[PATH_MAX];                                                                                              \
    uint64_t inode = records == NULL ? 0 : inode_of(descriptor);

int fsync(int descriptor)
{
    OF_DESCRIPTOR
    RECORDED(int, path_of(descriptor, path), REAL(fsync)(descriptor),
             put(SYNCED, inode, "", "", 0, 0, NULL, 0, 0));
}

int fdatasync(int descriptor)
{
    OF_DESCRIPTOR
    RECORDED(int, path_of(descriptor, path), REAL(fdatasync)(descriptor),
             put(SYNCED, inode, "", "", 0, 0, NULL, 0, 0));
}

int ftruncate64(int descriptor, off64_t length)
{
    OF_DESCRIPTOR
    RECORDED(int, path_of(descriptor, path), REAL(ftruncate64)(descriptor, length),
             put(CUT, inode, "", "", 0, length, NULL, 0, 0));
}

int fallocate64(int descriptor, int mode, off64_t offset, off64_t length)
{
    OF_DESCRIPTOR
    RECORDED(int, path_of(descriptor, path), REAL(fallocate64)(descriptor, mode, offset, length),
             put(ALLOCATED, inode, "", "", offset, length, NULL, 0, 0));
}

ssize_t write(int descriptor, const void *data, size_t size)
{
    OF_DESCRIPTOR
    struct iovec part = {(void *)data, size};
    RECORDED(ssize_t, path_of(descriptor, path), REAL(write)(descriptor, data, size),
             put(WRITTEN, inode, "", "", REAL(lseek64)(descriptor, 0, SEEK_CUR) - result, 0, &part, 1, result));
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t offset)
{
    OF_DESCRIPTOR
    struct iovec part = {(void *)data, size};
    RECORDED(ssize_t, path_of(descriptor, path), REAL(pwrite64)(descriptor, data, size, offset),
             put(WRITTEN, inode, "", "", offset, 0, &part, 1, result));
}

ssize_t pwritev64v2(int descriptor, const struct iovec *parts, int count, off64_t offset, int flags)
{
    OF_DESCRIPTOR
    RECORDED(ssize_t, path_of(descriptor, path), REAL(pwritev64v2)(descriptor, parts, count, offset, flags),
             put(WRITTEN, inode, "", "", offset, 0, parts, count, result));
}

ssize_t pwritev64(int descriptor, const struct iovec *parts, int count, off64_t offset)
{
    OF_DESCRIPTOR
    RECORDED(ssize_t, path_of(descriptor, path), REAL(pwritev64)(descriptor, parts, count, offset),
             put(WRITTEN, inode, "", "", offset, 0, parts, count, result));
}

int mkdirat(int directory, const char *name, mode_t mode)
{
    char path[PATH_MAX];
    RECORDED(int, resolved(directory, name, path), REAL(mkdirat)(directory, name, mode),
             put(MADE, inode_at(path), path, "", 0, 0, NULL, 0, 0));
}

int mkdir(const char *name, mode_t mode)
{
    char path[PATH_MAX];
    RECORDED(int, resolved(AT_FDCWD, name, path), REAL(mkdir)(name, mode),
             put(MADE, inode_at(path), path, "", 0, 0, NULL, 0, 0));
}

int rmdir(const char *name)
{
    char path[PATH_MAX];
    RECORDED(int, resolved(AT_FDCWD, name, path), REAL(rmdir)(name),
             put(REMOVED, 0, path, "", 0, 0, NULL, 0, 0));
}

int unlink(const char *name)
{
    char path[PATH_MAX];
    RECORDED(int, resolved(AT_FDCWD, name, path), REAL(unlink)(name),
             put(UNLINKED, 0, path, "", 0, 0, NULL, 0, 0));
}

int unlinkat(int directory, const char *name, int flags)
{
    char path[PATH_MAX];
    RECORDED(int, resolved(directory, name, path), REAL(unlinkat)(directory, name, flags),
             put(flags & AT_REMOVEDIR ? REMOVED : UNLINKED, 0, path, "", 0, 0, NULL, 0, 0));
}

int linkat(int from, const char *source, int to, const char *target, int flags)
{
    char one[PATH_MAX], other[PATH_MAX];
    RECORDED(int, resolved(from, source, one) && resolved(to, target, other),
             REAL(linkat)(from, source, to, target, flags), put(LINKED, 0, one, other, 0, 0, NULL, 0, 0));
}

int link(const char *source, const char *target)
{
    return linkat(AT_FDCWD, source, AT_FDCWD, target, 0);
}

int renameat2(int from, const char *source, int to, const char *target, unsigned flags)
{
    char one[PATH_MAX], other[PATH_MAX];
    RECORDED(int, resolved(from, source, one) && resolved(to, target, other),
             REAL(renameat2)(from, source, to, target, flags),
             put(RENAMED, flags, one, other, 0, 0, NULL, 0, 0));
}

int renameat(int from, const char *source, int to, const char *target)
{
    return renameat2(from, source, to, target, 0);
}

int rename(const char *source, const char *target)
{
    return renameat2(AT_FDCWD, source, AT_FDCWD, target, 0);
}

ssize_t writev(int descriptor, const struct iovec *parts, int count)
{
    OF_DESCRIPTOR
    RECORDED(ssize_t, path_of(descriptor, path), REAL(writev)(descriptor, parts, count),
             put(WRITTEN, inode, "", "", REAL(lseek64)(descriptor, 0, SEEK_CUR) - result, 0, parts, count, result));
}
