//! The volume on which a stage keeps its window, where its pool asks for one.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements};

use super::Slot;

pub(super) fn window(slot: &Slot<'_>) -> Option<PersistentVolumeClaim> {
    let storage = slot.spec.pool(slot.pool)?.storage.as_ref()?;
    Some(PersistentVolumeClaim {
        metadata: slot.meta(),
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            storage_class_name: storage.storage_class_name.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([("storage".to_owned(), storage.size.clone())])),
                ..VolumeResourceRequirements::default()
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        ..PersistentVolumeClaim::default()
    })
}
