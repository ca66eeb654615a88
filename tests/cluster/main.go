// Kubernetes in one program: the first argument, or the name of a symbolic link to it, says which part runs.
//
// One program, since the parts share most of their code: it is built, kept and mapped into memory once.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	// what CoreDNS is made of here
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	// what the parts of Kubernetes register by being there
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"

	"github.com/coredns/coredns/coremain"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlerrors "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// A part is run with os.Args as if it were a program of its own.
var parts = map[string]func(){
	"coredns": coremain.Run,
	"etcd":    func() { etcdmain.Main(os.Args) },
	"kubectl": runKubectl,

	"kube-apiserver":          daemon(func() *cobra.Command { return apiserver.NewAPIServerCommand() }),
	"kube-controller-manager": daemon(func() *cobra.Command { return controllers.NewControllerManagerCommand() }),
	"kube-scheduler":          daemon(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kube-proxy":              daemon(func() *cobra.Command { return proxy.NewProxyCommand() }),
	"kubelet":                 daemon(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
}

// Commands are made late: making one touches the process's flags.
func daemon(command func() *cobra.Command) func() {
	return func() { os.Exit(cli.Run(command())) }
}

func runKubectl() {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlerrors.CheckErr(err)
	}
}

func main() {
	name := filepath.Base(os.Args[0])
	if parts[name] == nil && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	run := parts[name]
	if run == nil {
		names := slices.Sorted(maps.Keys(parts))
		fmt.Fprintln(os.Stderr, "name a part as the first argument:", strings.Join(names, ", "))
		os.Exit(2)
	}
	if name != "coredns" {
		forgetCoreDNSFlags()
	}
	run()
}

// CoreDNS puts its options among the process's flags, where some have names that kubectl has too.
func forgetCoreDNSFlags() {
	theirs := []string{"conf", "dns.port", "p", "pidfile", "plugins", "quiet", "version"}
	kept := flag.NewFlagSet(os.Args[0], flag.ExitOnError)
	flag.VisitAll(func(f *flag.Flag) {
		if !slices.Contains(theirs, f.Name) {
			kept.Var(f.Value, f.Name, f.Usage)
		}
	})
	flag.CommandLine = kept
}
