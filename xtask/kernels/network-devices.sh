# A swap file on NFS, from a server of this machine's own: as it is; while the network is gone for a while, which a hard
# mount waits for; and while the server is gone for too long for a soft mount, whose transfers fail.
set -u
. xtask/kernels/survives.sh

modprobe nfsd; modprobe nfsv4
mkdir -p /var/tmp/exported /run/hard /run/soft
mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
# No client has anything to reclaim.
echo 10 > /proc/fs/nfsd/nfsv4gracetime
exportfs -o rw,no_root_squash,insecure,no_subtree_check,fsid=0 127.0.0.1:/var/tmp/exported
rpc.mountd -N 3
rpc.nfsd -N 3 4
echo Y > /proc/fs/nfsd/v4_end_grace
mount -t nfs4 -o vers=4.2,hard 127.0.0.1:/ /run/hard || { echo 'no NFS: the check shows nothing'; exit 1; }

away() { sleep 1; ip link set lo down; sleep "$1"; ip link set lo up; }
# Not the network: a request of NFSv4 that was sent is given up only once its connection has ended.
closed() { sleep 1; rpc.nfsd 0; sleep "$1"; rpc.nfsd -N 3 4; }
MUST_END=well run 'NFS' /run/hard true
MUST_END=well BESIDE=yes run 'NFS without its network for 10 s' /run/hard 'away 10'
# Mounts of one server, whatever its address, share a connection and how long they wait: this one is to be alone.
umount /run/hard
mount -t nfs4 -o vers=4.2,soft,timeo=10,retrans=1 127.0.0.1:/ /run/soft || { echo 'no soft mount'; exit 1; }
BESIDE=yes run 'NFS that gives up' /run/soft 'closed 30'
dmesg | grep -q 'nfs: .* timed out' || { echo 'the mount did not give up: the check shows nothing'; bad=1; }
umount /run/soft || umount -l /run/soft
rpc.nfsd 0
exit $bad
